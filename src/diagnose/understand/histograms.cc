#include "diagnose/understand/histograms.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <utility>

namespace fathom::diagnose {

std::optional<double> BucketBound(std::string_view labels) {
  const size_t at = labels.find("le=\"");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view text = labels.substr(at + 4, labels.find('"', at + 4) - at - 4);
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

HistogramQuantile QuantileOf(const std::vector<std::pair<double, double>>& cumulative, double q) {
  HistogramQuantile at;
  const double rank = q * cumulative.back().second;
  for (const auto& [bound, count] : cumulative) {
    at.up_to = bound;
    if (count >= rank) break;
    at.above = bound;
  }
  return at;
}

std::vector<std::pair<double, double>> LatencyHistogram::Between(size_t from, size_t to) const {
  std::vector<std::pair<double, double>> counts;
  for (size_t b = 0; b < bounds.size(); ++b) {
    counts.emplace_back(bounds[b], cumulative[to][b] - cumulative[from][b]);
  }
  return counts;
}

bool LatencyHistogram::GoesOn(size_t scrape) const {
  const std::vector<double>& before = cumulative[scrape - 1];
  return std::equal(before.begin(), before.end(), cumulative[scrape].begin(), std::less_equal<>());
}

namespace {

bool IsCumulative(const std::vector<double>& counts) {
  return counts.front() >= 0 && std::is_sorted(counts.begin(), counts.end());
}

}  // namespace

std::vector<LatencyHistogram> FindHistograms(const Timeline& timeline,
                                             const std::vector<std::string_view>& names) {
  using Key = std::pair<SourceId, StringId>;
  std::map<uint32_t, std::pair<Key, double>> wanted;  // series -> histogram and bound
  for (uint32_t s = 0; s < timeline.series.size(); ++s) {
    const Series& series = timeline.series[s];
    if (series.kind != SeriesKind::kHistogramBucket) continue;
    if (timeline.sources[series.source].clock == ClockDomain::kNone) continue;
    const std::string_view name = timeline.Name(series.name);
    const bool named = std::any_of(names.begin(), names.end(), [&](std::string_view part) {
      return name.find(part) != std::string_view::npos;
    });
    const auto bound = named ? BucketBound(timeline.Name(series.labels)) : std::nullopt;
    if (bound) wanted[s] = {{series.source, series.name}, *bound};
  }
  std::map<Key, std::map<int64_t, std::map<double, double>>> counts;
  for (size_t i = 0; i < timeline.samples.size(); ++i) {
    const auto it = wanted.find(timeline.samples.series[i]);
    if (it == wanted.end()) continue;
    const auto& [key, bound] = it->second;
    counts[key][timeline.samples.t_ns[i]][bound] += timeline.samples.value[i];
  }
  std::vector<LatencyHistogram> histograms;
  for (const auto& [key, by_time] : counts) {
    LatencyHistogram h;
    h.source = key.first;
    h.name = timeline.Name(key.second);
    h.name.resize(h.name.size() - std::string_view("_bucket").size());
    for (const auto& [bound, count] : by_time.begin()->second) h.bounds.push_back(bound);
    if (h.bounds.empty() || h.bounds.back() != std::numeric_limits<double>::infinity()) continue;
    for (const auto& [t_ns, by_bound] : by_time) {
      // A scrape that was cut short has fewer buckets: its counts are not comparable.
      std::vector<double> row;
      for (const auto& [bound, count] : by_bound) row.push_back(count);
      if (row.size() != h.bounds.size() || !IsCumulative(row)) continue;
      h.t_ns.push_back(t_ns);
      h.cumulative.push_back(std::move(row));
    }
    histograms.push_back(std::move(h));
  }
  return histograms;
}

}  // namespace fathom::diagnose
