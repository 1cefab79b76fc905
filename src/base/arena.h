#pragma once
// Activation memory of one step: a bump allocator over bytes that somebody else owns, sized once
// from the memory plan. Running out is a bug in that plan, so it aborts rather than allocates.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/tensor_view.h"

namespace fathom {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  Arena() = default;
  explicit Arena(std::span<std::byte> memory) : memory_(memory) {}

  void* Allocate(size_t bytes) {
    const size_t begin = Align(used_);
    FATHOM_CHECK(begin + bytes <= memory_.size(),
                 "arena of {} bytes has {} used and was asked for {}", memory_.size(), used_,
                 bytes);
    used_ = begin + bytes;
    if (used_ > peak_) peak_ = used_;
    return memory_.data() + begin;
  }
  TensorView Tensor(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::Contiguous(nullptr, dtype, shape);
    view.data = Allocate(static_cast<size_t>(view.NumBytes()));
    return view;
  }

  // Everything allocated after a Mark is given back by Release(mark).
  size_t Mark() const { return used_; }
  void Release(size_t mark) { used_ = mark; }
  size_t peak() const { return peak_; }
  size_t capacity() const { return memory_.size(); }

  static size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  std::span<std::byte> memory_;
  size_t used_ = 0;
  size_t peak_ = 0;
};

// Gives back what was allocated in its scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.Mark()) {}
  ~ArenaScope() { arena_.Release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t mark_;
};

}  // namespace fathom
