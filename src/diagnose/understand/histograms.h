#pragma once
// A server's latency histograms over time: cumulative counts by upper bound, one row a scrape.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

// The upper bound that a bucket's labels state (le="0.3", le="+Inf").
std::optional<double> BucketBound(std::string_view labels);

// Where a histogram's quantile lies. Buckets resolve no finer than (above, up_to].
struct HistogramQuantile {
  double above = 0;
  double up_to = 0;  // infinity in the last bucket
};
// `cumulative`: (upper bound, count up to it), ascending, the last bound +infinity.
HistogramQuantile QuantileOf(const std::vector<std::pair<double, double>>& cumulative, double q);

// Counts of all label sets (models, engines) together, since the server's last start.
struct LatencyHistogram {
  SourceId source = 0;
  std::string name;                             // without "_bucket"
  std::vector<double> bounds;                   // ascending seconds, the last one infinite
  std::vector<int64_t> t_ns;                    // ascending
  std::vector<std::vector<double>> cumulative;  // [scrape][bound]

  size_t size() const { return t_ns.size(); }
  // Whether the server (every engine of it) still was the one of the scrape before: no count fell.
  bool GoesOn(size_t scrape) const;
  // What was observed between two scrapes of one start: (upper bound, count up to it).
  std::vector<std::pair<double, double>> Between(size_t from, size_t to) const;
};

// Those whose name holds one of `names` and whose source states times.
std::vector<LatencyHistogram> FindHistograms(const Timeline& timeline,
                                             const std::vector<std::string_view>& names);

}  // namespace fathom::diagnose
