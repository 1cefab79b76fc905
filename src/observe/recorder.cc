#include "observe/recorder.h"

#include <future>
#include <utility>

namespace fathom::observe {
namespace {
constexpr size_t kBatch = 4096;
}

Recorder::Recorder(event::Ring* ring, std::vector<Consumer*> consumers,
                   std::chrono::milliseconds period)
    : ring_(ring), consumers_(std::move(consumers)), period_(period), batch_(kBatch) {
  thread_ = std::thread([this] { Loop(); });
}

Recorder::~Recorder() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Recorder::FlushThen(std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(done));
  }
  wake_.notify_one();
}

void Recorder::Flush() {
  std::promise<void> done;
  FlushThen([&] { done.set_value(); });
  done.get_future().wait();
}

void Recorder::DrainAll() {
  // Everything that was accepted by now. A producer that has taken a cell and not yet filled it
  // holds up those behind it for some nanoseconds, or for a time slice if it lost its core.
  const uint64_t goal = ring_->accepted();
  while (consumed_ < goal) {
    const size_t n = ring_->Drain(batch_);
    if (n == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    consumed_ += n;
    for (Consumer* consumer : consumers_) consumer->Consume(std::span(batch_.data(), n));
  }
  if (const uint64_t dropped = ring_->dropped(); dropped > dropped_) {
    for (Consumer* consumer : consumers_) consumer->OnDropped(dropped - dropped_);
    dropped_ = dropped;
  }
}

void Recorder::Loop() {
  std::vector<std::function<void()>> waiting;
  for (;;) {
    bool stop = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, period_, [this] { return stop_ || !waiting_.empty(); });
      waiting.swap(waiting_);
      stop = stop_;
    }
    DrainAll();
    for (auto& done : waiting) std::exchange(done, nullptr)();
    waiting.clear();
    if (stop) return;
  }
}

}  // namespace fathom::observe
