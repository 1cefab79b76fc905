#pragma once
// Reads every source on one clock into one ring: what was the GPU doing while the CPU did that.
// A thread a source; a ring that keeps the newest samples and counts those it lost.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "observe/live/source.h"

namespace fathom::observe {

struct SamplerOptions {
  int period_ms = 10;
  size_t capacity = size_t{1} << 20;  // samples kept (24 MiB)
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Opens a source; a failure is kept in skipped() and the sampler goes on without it.
  void Add(std::unique_ptr<Source> source);
  void Start();
  void Stop();

  struct Skipped {
    std::string source;
    std::string why;
  };
  const std::vector<Skipped>& skipped() const { return skipped_; }

  // Samples in time order, from `*cursor` on, which moves past them. 0 starts at the oldest kept.
  std::vector<event::Sample> Since(uint64_t* cursor) const;
  uint64_t lost() const;
  // Two samples taken "together" are at most this far apart: one period of the slowest source plus
  // the longest reading that was seen.
  int64_t alignment_error_ns() const;

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    int period_ms = 0;
    std::thread thread;
  };
  void Loop(Entry& entry);

  SamplerOptions options_;
  std::vector<Entry> entries_;
  std::vector<Skipped> skipped_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<event::Sample> ring_;
  uint64_t written_ = 0;
  int64_t longest_reading_ns_ = 0;
};

}  // namespace fathom::observe
