#pragma once
// The one reader of the event ring: a thread that drains it every few milliseconds and hands the
// events to the ledger, the metrics and the trace in order of arrival.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "event/ring.h"

namespace fathom::observe {

class Consumer {
 public:
  virtual ~Consumer() = default;
  // On the recorder's thread. Events of one producer come in its order; those of different
  // producers, and of a GPU's clock, may be late.
  virtual void Consume(std::span<const event::Event> events) = 0;
  // `count` more events were lost because the ring was full.
  virtual void OnDropped(uint64_t count) = 0;
};

class Recorder {
 public:
  // The ring and the consumers outlive the recorder.
  Recorder(event::Ring* ring, std::vector<Consumer*> consumers,
           std::chrono::milliseconds period = std::chrono::milliseconds(10));
  // Stops the thread, then drains what is left.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Calls `done` on the recorder's thread once everything that was pushed before this call has
  // been consumed, and lets go of it before the next one: whoever waits for a later flush may
  // destroy what `done` held on to. `done` must not block.
  void FlushThen(std::function<void()> done);
  void Flush();  // the same, waiting

 private:
  void Loop();
  void DrainAll();

  event::Ring* ring_;
  std::vector<Consumer*> consumers_;
  std::chrono::milliseconds period_;
  std::vector<event::Event> batch_;
  uint64_t consumed_ = 0;
  uint64_t dropped_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fathom::observe
