#include "event/ring.h"

#include <bit>

namespace fathom::event {

Ring::Ring(size_t capacity) : mask_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity) - 1) {
  cells_ = std::make_unique<Cell[]>(mask_ + 1);
  for (size_t i = 0; i <= mask_; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
}

bool Ring::Push(const Event& event) {
  // A cell was last written by the reader's core, a lap ago: one that comes soon is fetched now.
  constexpr uint64_t kAhead = 8;
  uint64_t position = head_.load(std::memory_order_relaxed);
  for (;;) {
    Cell& cell = cells_[position & mask_];
    const uint64_t sequence = cell.sequence.load(std::memory_order_acquire);
    const auto turn = static_cast<int64_t>(sequence - position);
    if (turn == 0) {
      if (head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        __builtin_prefetch(&cells_[(position + kAhead) & mask_], /*rw=*/1);
        cell.event = event;
        cell.sequence.store(position + 1, std::memory_order_release);
        return true;
      }
    } else if (turn < 0) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return false;
    } else {
      position = head_.load(std::memory_order_relaxed);
    }
  }
}

size_t Ring::Drain(std::span<Event> out) {
  size_t n = 0;
  while (n < out.size()) {
    Cell& cell = cells_[tail_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != tail_ + 1) break;
    out[n++] = cell.event;
    cell.sequence.store(tail_ + mask_ + 1, std::memory_order_release);
    ++tail_;
  }
  return n;
}

}  // namespace fathom::event
