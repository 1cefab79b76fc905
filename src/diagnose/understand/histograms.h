#pragma once
// A server's latency histograms over time: cumulative counts by upper bound, one row a scrape.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

// The upper bound that a bucket's labels state (le="0.3", le="+Inf"), and the other labels. Nothing
// where the bound is no number.
struct BucketLabels {
  double bound = 0;
  std::string others;
};
std::optional<BucketLabels> SplitBucketLabels(std::string_view labels);

// Where a histogram's quantile lies. Buckets resolve no finer than (above, up_to].
struct HistogramQuantile {
  double above = 0;
  double up_to = 0;  // infinity in the last bucket
};
// `cumulative`: (upper bound, count up to it), ascending, the last bound +infinity.
HistogramQuantile QuantileOf(const std::vector<std::pair<double, double>>& cumulative, double q);

// Counts of all label sets (models, engines) that have the same bounds together.
struct LatencyHistogram {
  SourceId source = 0;
  std::string name;                             // without "_bucket"
  std::vector<double> bounds;                   // ascending seconds, the last one infinite
  std::vector<int64_t> t_ns;                    // ascending
  std::vector<std::vector<double>> cumulative;  // [scrape][bound]
  // [scrape]: whether it is no continuation of the scrape before: the first one, or a label set
  // appeared, vanished or counted down (its engine started again). Differences end there.
  std::vector<bool> begins;

  size_t size() const { return t_ns.size(); }
  // What was observed between two scrapes with no beginning in (from, to]: (upper bound, count up
  // to it).
  std::vector<std::pair<double, double>> Between(size_t from, size_t to) const;
};

// The histograms of `quantities` ("time_to_first_token") that are in seconds by their names
// ("..._seconds_bucket", or OpenTelemetry's gen_ai_server_..., which are in seconds with or without
// the suffix) and whose source states times. Means of a request (request_time_per_output_token) are
// other quantities.
std::vector<LatencyHistogram> FindHistograms(const Timeline& timeline,
                                             const std::vector<std::string_view>& quantities);

}  // namespace fathom::diagnose
