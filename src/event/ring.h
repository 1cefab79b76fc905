#pragma once
// A bounded queue from many producers to one consumer: no lock, no allocation after construction.
// A full ring drops the newest event and counts it; it never makes a producer wait.
// Each cell carries a sequence number that says whose turn it is (Vyukov's bounded queue).
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "event/event.h"

namespace fathom::event {

class Ring {
 public:
  explicit Ring(size_t capacity);  // rounded up to a power of two

  bool Push(const Event& event);       // any thread; false when full (and counted)
  size_t Drain(std::span<Event> out);  // one thread; how many were taken, oldest first
  // Events accepted so far; those a producer is still writing are counted already.
  uint64_t accepted() const { return head_.load(std::memory_order_acquire); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<uint64_t> sequence;
    Event event;
  };
  std::unique_ptr<Cell[]> cells_;
  size_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) uint64_t tail_ = 0;
  alignas(64) std::atomic<uint64_t> dropped_{0};
};

// What producers hold. Default-constructed it discards, so that emitting code needs no test.
class Sink {
 public:
  Sink() = default;
  explicit Sink(Ring* ring) : ring_(ring) {}
  bool enabled() const { return ring_ != nullptr; }
  void Emit(const Event& event) const {
    if (ring_ != nullptr) ring_->Push(event);
  }

 private:
  Ring* ring_ = nullptr;
};

}  // namespace fathom::event
