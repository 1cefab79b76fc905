#pragma once
// Something that can be read again and again: /proc, NVML, hardware counters. Each source is read
// by one thread at its own period, so that a slow one (PCIe counters take 20 ms) delays nobody.
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "event/sample.h"

namespace fathom::observe {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string_view name() const = 0;
  // Takes the first reading. An error says what is missing; the sampler goes on without the source.
  virtual Status Open() = 0;
  // Appends this moment's samples. Rates need two readings: the first call gives none.
  virtual void Read(std::vector<event::Sample>& out) = 0;
  // 0: the sampler's own period.
  virtual int min_period_ms() const { return 0; }
};

// Stamps samples with the middle of a reading and half its length.
class ReadingScope {
 public:
  explicit ReadingScope(std::vector<event::Sample>& out)
      : out_(out), first_(out.size()), start_ns_(NowNs()) {}
  ~ReadingScope() {
    const int64_t end_ns = NowNs();
    for (size_t i = first_; i < out_.size(); ++i) {
      out_[i].t_ns = start_ns_ + (end_ns - start_ns_) / 2;
      out_[i].half_width_ns = static_cast<int32_t>((end_ns - start_ns_ + 1) / 2);
    }
  }
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;
  int64_t start_ns() const { return start_ns_; }
  void Add(event::Metric metric, double value, int device = 0) {
    out_.push_back({.value = value, .metric = metric, .device = static_cast<uint16_t>(device)});
  }

 private:
  std::vector<event::Sample>& out_;
  size_t first_;
  int64_t start_ns_;
};

// A counter that only grows, turned into a rate.
class Rate {
 public:
  // Returns false on the first reading and when the counter went back (a restart).
  bool Update(double total, int64_t now_ns, double* per_second) {
    const bool usable = valid_ && now_ns > last_ns_ && total >= last_;
    if (usable) *per_second = (total - last_) * 1e9 / static_cast<double>(now_ns - last_ns_);
    valid_ = true;
    last_ = total;
    last_ns_ = now_ns;
    return usable;
  }

 private:
  bool valid_ = false;
  double last_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace fathom::observe
