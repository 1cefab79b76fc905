#include "observe/live/sampler.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace fathom::observe {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  FATHOM_CHECK(options.period_ms >= 1 && options.capacity >= 1);
  ring_.resize(options.capacity);
}

Sampler::~Sampler() { Stop(); }

void Sampler::Add(std::unique_ptr<Source> source) {
  if (const Status status = source->Open(); !status) {
    skipped_.push_back({std::string(source->name()), status.error().message});
    return;
  }
  const int period_ms = std::max(options_.period_ms, source->min_period_ms());
  entries_.push_back({.source = std::move(source), .period_ms = period_ms, .thread = {}});
}

void Sampler::Start() {
  for (Entry& entry : entries_) entry.thread = std::thread([this, &entry] { Loop(entry); });
}

void Sampler::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (Entry& entry : entries_) {
    if (entry.thread.joinable()) entry.thread.join();
  }
}

void Sampler::Loop(Entry& entry) {
  const auto period = std::chrono::milliseconds(entry.period_ms);
  auto next = std::chrono::steady_clock::now() + period;
  std::vector<event::Sample> samples;
  std::unique_lock lock(mutex_);
  // A reading that takes longer than the period skips beats; it does not run to catch up.
  while (!wake_.wait_until(lock, next, [this] { return stop_; })) {
    lock.unlock();
    samples.clear();
    entry.source->Read(samples);
    next = std::max(next + period, std::chrono::steady_clock::now());
    lock.lock();
    for (const event::Sample& sample : samples) {
      ring_[written_++ % ring_.size()] = sample;
      longest_reading_ns_ =
          std::max<int64_t>(longest_reading_ns_, 2 * int64_t{sample.half_width_ns});
    }
  }
}

std::vector<event::Sample> Sampler::Since(uint64_t* cursor) const {
  std::vector<event::Sample> samples;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t oldest = written_ > ring_.size() ? written_ - ring_.size() : 0;
    samples.reserve(written_ - std::max(*cursor, oldest));
    for (uint64_t i = std::max(*cursor, oldest); i < written_; ++i) {
      samples.push_back(ring_[i % ring_.size()]);
    }
    *cursor = written_;
  }
  std::stable_sort(samples.begin(), samples.end(),
                   [](const auto& a, const auto& b) { return a.t_ns < b.t_ns; });
  return samples;
}

uint64_t Sampler::lost() const {
  const std::lock_guard lock(mutex_);
  return written_ > ring_.size() ? written_ - ring_.size() : 0;
}

int64_t Sampler::alignment_error_ns() const {
  const std::lock_guard lock(mutex_);
  int period_ms = 0;
  for (const Entry& entry : entries_) period_ms = std::max(period_ms, entry.period_ms);
  return int64_t{period_ms} * 1'000'000 + longest_reading_ns_;
}

}  // namespace fathom::observe
