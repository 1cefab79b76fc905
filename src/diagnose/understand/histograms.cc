#include "diagnose/understand/histograms.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace fathom::diagnose {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::optional<double> BoundOf(std::string_view text) {
  if (text == "+Inf") return kInfinity;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<BucketLabels> SplitBucketLabels(std::string_view labels) {
  constexpr std::string_view kKey = "le=\"";
  for (size_t at = 0; (at = labels.find(kKey, at)) != std::string_view::npos; ++at) {
    if (at > 0 && labels[at - 1] != ',') continue;  // the end of another key
    const size_t begin = at + kKey.size();
    const size_t end = labels.find('"', begin);
    if (end == std::string_view::npos) break;
    const std::optional<double> bound = BoundOf(labels.substr(begin, end - begin));
    if (!bound) continue;
    return BucketLabels{.bound = *bound,
                        .others = std::string(labels.substr(0, at)).append(labels.substr(end + 1))};
  }
  return std::nullopt;
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

namespace {

constexpr std::string_view kBucket = "_bucket";

bool IsInSeconds(std::string_view name, std::string_view quantity) {
  name.remove_suffix(kBucket.size());
  constexpr std::string_view kUnit = "_seconds";
  const bool stated = name.ends_with(kUnit);
  if (stated) name.remove_suffix(kUnit.size());
  if (!name.ends_with(quantity)) return false;
  name.remove_suffix(quantity.size());
  if (name.ends_with("request_")) return false;
  return stated || name == "gen_ai_server_" || name == "gen_ai.server.";
}

using Bounds = std::vector<double>;
using Counts = std::vector<double>;
// What one label set's scrapes say: by time, by bound.
using LabelSet = std::map<int64_t, std::map<double, double>>;

Bounds BoundsOf(const std::map<double, double>& buckets) {
  Bounds bounds;
  for (const auto& [bound, count] : buckets) bounds.push_back(bound);
  return bounds;
}

// The bounds that most scrapes have, the most of them in doubt: a scrape that was cut short has
// fewer.
Bounds UsualBounds(const LabelSet& set) {
  std::map<Bounds, size_t> scrapes;
  for (const auto& [t_ns, buckets] : set) ++scrapes[BoundsOf(buckets)];
  const auto less = [](const auto& a, const auto& b) {
    return std::pair(a.second, a.first.size()) < std::pair(b.second, b.first.size());
  };
  return std::max_element(scrapes.begin(), scrapes.end(), less)->first;
}

// Nothing where the scrape was cut short or its counts are none.
std::optional<Counts> CountsOf(const std::map<double, double>& buckets, const Bounds& bounds) {
  if (BoundsOf(buckets) != bounds) return std::nullopt;
  Counts counts;
  for (const auto& [bound, count] : buckets) counts.push_back(count);
  const bool cumulative = counts.front() >= 0 && std::isfinite(counts.back()) &&
                          std::is_sorted(counts.begin(), counts.end());
  return cumulative ? std::optional(counts) : std::nullopt;
}

// By label set: whether every one of the scrape before is there and counted on.
using Scrape = std::map<size_t, Counts>;
bool GoesOn(const Scrape& before, const Scrape& now) {
  return std::equal(
      before.begin(), before.end(), now.begin(), now.end(), [](const auto& a, const auto& b) {
        return a.first == b.first &&
               std::equal(a.second.begin(), a.second.end(), b.second.begin(), std::less_equal<>());
      });
}

void AddScrapes(const std::vector<const LabelSet*>& sets, LatencyHistogram& h) {
  std::map<int64_t, std::map<size_t, std::optional<Counts>>> by_time;
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const auto& [t_ns, buckets] : *sets[i]) by_time[t_ns][i] = CountsOf(buckets, h.bounds);
  }
  Scrape before;
  for (const auto& [t_ns, found] : by_time) {
    Scrape now;
    for (const auto& [set, counts] : found) {
      if (counts) now[set] = *counts;
    }
    if (now.size() < found.size()) continue;
    Counts sum(h.bounds.size(), 0);
    for (const auto& [set, counts] : now) {
      std::transform(sum.begin(), sum.end(), counts.begin(), sum.begin(), std::plus<>());
    }
    h.begins.push_back(h.t_ns.empty() || !GoesOn(before, now));
    h.t_ns.push_back(t_ns);
    h.cumulative.push_back(std::move(sum));
    before = std::move(now);
  }
}

}  // namespace

std::vector<LatencyHistogram> FindHistograms(const Timeline& timeline,
                                             const std::vector<std::string_view>& quantities) {
  using Key = std::tuple<SourceId, StringId, int32_t, std::string>;
  std::map<uint32_t, std::pair<Key, double>> wanted;  // series -> label set and bound
  for (uint32_t s = 0; s < timeline.series.size(); ++s) {
    const Series& series = timeline.series[s];
    if (series.kind != SeriesKind::kHistogramBucket) continue;
    if (timeline.sources[series.source].clock == ClockDomain::kNone) continue;
    const std::string_view name = timeline.Name(series.name);
    const bool named = std::any_of(quantities.begin(), quantities.end(),
                                   [&](std::string_view q) { return IsInSeconds(name, q); });
    if (!named) continue;
    if (auto labels = SplitBucketLabels(timeline.Name(series.labels))) {
      wanted[s] = {{series.source, series.name, series.device, std::move(labels->others)},
                   labels->bound};
    }
  }
  std::map<Key, LabelSet> sets;
  for (size_t i = 0; i < timeline.samples.size(); ++i) {
    const auto it = wanted.find(timeline.samples.series[i]);
    if (it == wanted.end()) continue;
    const auto& [key, bound] = it->second;
    sets[key][timeline.samples.t_ns[i]][bound] = timeline.samples.value[i];
  }
  std::map<std::tuple<SourceId, StringId, Bounds>, std::vector<const LabelSet*>> groups;
  for (const auto& [key, set] : sets) {
    groups[{std::get<SourceId>(key), std::get<StringId>(key), UsualBounds(set)}].push_back(&set);
  }
  std::vector<LatencyHistogram> histograms;
  for (const auto& [key, group] : groups) {
    LatencyHistogram h;
    h.source = std::get<SourceId>(key);
    h.name = timeline.Name(std::get<StringId>(key));
    h.name.resize(h.name.size() - kBucket.size());
    h.bounds = std::get<Bounds>(key);
    if (h.bounds.back() != kInfinity) continue;
    AddScrapes(group, h);
    histograms.push_back(std::move(h));
  }
  return histograms;
}

}  // namespace fathom::diagnose
