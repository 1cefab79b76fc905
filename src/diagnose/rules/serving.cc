// Rules over what servers say of themselves: caches, experts, collectives, networks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "cost/communication.h"
#include "cost/hardware.h"
#include "diagnose/clock.h"
#include "diagnose/rules/families.h"
#include "diagnose/understand/attention_calls.h"
#include "diagnose/understand/layers.h"
#include "diagnose/understand/shapes.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Hit rates over time, 0..1, from the log lines that state one or from counters.
struct HitRates {
  std::vector<double> rate;
  std::vector<double> queries;  // tokens asked for in the same window; empty: not known
  std::string from;
};

HitRates FindHitRates(const Timeline& t) {
  HitRates hits;
  // Counters first: a log line's rate may be an average since the start.
  const auto queries = FindSignal(t, Signal::kPrefixQueries);
  const auto found = FindSignal(t, Signal::kPrefixHits);
  for (const SignalSeries& q : queries) {
    for (const SignalSeries& h : found) {
      if (h.source != q.source || h.size() != q.size() || q.size() < 2) continue;
      for (size_t i = 1; i < q.size(); ++i) {
        const double asked = q.value[i] - q.value[i - 1];
        const double got = h.value[i] - h.value[i - 1];
        if (asked <= 0 || got < 0) continue;
        hits.rate.push_back(got / asked);
        hits.queries.push_back(asked);
      }
      hits.from = q.name;
      if (!hits.rate.empty()) return hits;
    }
  }
  for (const LogLine& line : t.log_lines) {
    if (const auto rate = t.Value(line, LogField::kPrefixHitRate)) {
      hits.rate.push_back(*rate);
      continue;
    }
    const auto cached = t.Value(line, LogField::kCachedTokens);
    const auto fresh = t.Value(line, LogField::kNewTokens);
    if (cached && fresh && *cached + *fresh > 0) {
      hits.rate.push_back(*cached / (*cached + *fresh));
      hits.queries.push_back(*cached + *fresh);
    }
  }
  hits.from = "log";
  return hits;
}

double MeanOf(const std::vector<double>& v, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += v[i];
  return sum / static_cast<double>(end - begin);
}

double DeviationOf(const std::vector<double>& v, size_t begin, size_t end) {
  const double mean = MeanOf(v, begin, end);
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += (v[i] - mean) * (v[i] - mean);
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(end - begin - 1, 1)));
}

}  // namespace

void PrefixCache(const RuleContext& context, Findings& findings) {
  const HitRates hits = FindHitRates(context.timeline);
  const size_t n = hits.rate.size();
  const auto least = static_cast<size_t>(context.thresholds["prefix-cache.min_windows"]);
  const bool handbook = context.thresholds.enabled("prefix-cache.handbook_rate");
  if (n < least && !(handbook && n > 0)) {
    findings.abstained.push_back(
        {"prefix-cache", {"abstain.no_hit_rates", {{"least", std::to_string(least)}}}});
    return;
  }
  Finding finding{.id = "prefix-cache", .phase = Phase::kPrefill};
  finding.saving_ms_per_step = kNaN;
  finding.confidence = 0.7;
  // The cut that separates two levels best, each side with a third of the minimum at least.
  double best_fall = 0;
  size_t cut = 0;
  for (size_t i = std::max<size_t>(least / 3, 2); i + std::max<size_t>(least / 3, 2) <= n; ++i) {
    const double fall = MeanOf(hits.rate, 0, i) - MeanOf(hits.rate, i, n);
    if (fall > best_fall) {
      best_fall = fall;
      cut = i;
    }
  }
  if (cut > 0) {
    const double before = MeanOf(hits.rate, 0, cut);
    const double after = MeanOf(hits.rate, cut, n);
    const double sigma = std::max(DeviationOf(hits.rate, 0, cut), 1e-3);
    // A fall while ten times fewer tokens were asked for says little.
    const bool steady = hits.queries.size() != n ||
                        MeanOf(hits.queries, cut, n) > 0.2 * MeanOf(hits.queries, 0, cut);
    if (best_fall >= context.thresholds["prefix-cache.fall"] &&
        best_fall >= context.thresholds["prefix-cache.sigmas"] * sigma && steady) {
      finding.severity = Severity::kWarn;
      finding.title = {"prefix-cache.title",
                       {{"before", Percent(before)}, {"after", Percent(after)}}};
      finding.evidence.push_back({.text = {"prefix-cache.evidence",
                                           {{"windows", std::to_string(n)},
                                            {"sigmas", Number(best_fall / sigma)},
                                            {"from", hits.from}}},
                                  .value = best_fall,
                                  .unit = "share"});
      finding.thresholds = {context.thresholds.Used("prefix-cache.fall"),
                            context.thresholds.Used("prefix-cache.handbook_rate")};
    }
  }
  const double mean = n > 0 ? MeanOf(hits.rate, 0, n) : kNaN;
  if (finding.title.key.empty() && handbook &&
      mean < context.thresholds["prefix-cache.handbook_rate"]) {
    finding.severity = Severity::kInfo;
    finding.title = {"prefix-cache.title.low", {{"rate", Percent(mean)}}};
    finding.thresholds = {context.thresholds.Used("prefix-cache.handbook_rate")};
  }
  if (finding.title.key.empty()) return;
  finding.change = {"prefix-cache.change", {}};
  finding.risk = {"prefix-cache.risk", {}};
  finding.undo = {"prefix-cache.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void CacheVersion(const RuleContext& context, Findings& findings) {
  const Timeline& t = context.timeline;
  // Spans and events that carry op=kv_version_mismatch.
  size_t count = 0;
  double dropped = 0;
  size_t lookups = 0;
  std::set<std::string> causes;
  for (const Span& span : t.spans) {
    std::string_view op = t.Name(span.name);
    double entries = 1;
    std::string cause;
    for (uint32_t i = 0; i < span.num_attributes; ++i) {
      const Attribute& a = t.attributes[span.first_attribute + i];
      const std::string_view key = t.Name(a.key);
      if (key == "op") op = t.Name(a.text);
      if (key == "entries" && !std::isnan(a.number)) entries = a.number;
      if (key == "cause") cause = t.Name(a.text);
    }
    lookups += op == "prefix_lookup" || op == "cache_miss" ? 1 : 0;
    if (op != "kv_version_mismatch") continue;
    ++count;
    dropped += entries;
    if (!cause.empty()) causes.insert(cause);
  }
  for (size_t s = 0; s < t.slices.size(); ++s) {
    if (t.slices.category[s] != Category::kEngine) continue;
    lookups += t.SliceName(s) == "prefix_lookup" ? 1 : 0;
    if (t.SliceName(s) != "kv_version_mismatch") continue;
    ++count;
    dropped += 1;
  }
  if (count == 0 && lookups == 0) {
    findings.abstained.push_back({"cache-version", {"abstain.no_cache_events", {}}});
    return;
  }
  if (!context.thresholds.enabled("cache-version.handbook_mismatches") ||
      static_cast<double>(count) <= context.thresholds["cache-version.handbook_mismatches"]) {
    return;
  }
  Finding finding{.id = "cache-version", .phase = Phase::kPrefill};
  finding.severity = Severity::kWarn;
  finding.confidence = 0.9;
  finding.saving_ms_per_step = kNaN;
  finding.title = {"cache-version.title",
                   {{"count", std::to_string(count)}, {"entries", Number(dropped)}}};
  for (const std::string& cause : causes) {
    finding.evidence.push_back({.text = {"cache-version.evidence", {{"cause", cause}}}});
  }
  finding.thresholds = {context.thresholds.Used("cache-version.handbook_mismatches")};
  finding.change = {"cache-version.change", {}};
  finding.risk = {"cache-version.risk", {}};
  finding.undo = {"cache-version.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void MoeHotspot(const RuleContext& context, Findings& findings) {
  const Timeline& t = context.timeline;
  if (t.expert_loads.empty()) {
    findings.abstained.push_back({"moe-hotspot", {"abstain.no_expert_loads", {}}});
    return;
  }
  std::map<int32_t, std::map<int32_t, double>> layers;  // layer -> expert -> tokens
  std::map<int32_t, std::map<int32_t, double>> ranks;   // layer -> rank -> tokens
  for (const ExpertLoad& load : t.expert_loads) {
    layers[load.layer][load.expert] += load.tokens;
    if (load.rank >= 0) ranks[load.layer][load.rank] += load.tokens;
  }
  struct Hot {
    int32_t layer, expert;
    double ratio, z;
  };
  std::vector<Hot> hot;
  size_t judged = 0;
  for (const auto& [layer, experts] : layers) {
    double total = 0;
    for (const auto& [expert, tokens] : experts) total += tokens;
    if (total < context.thresholds["moe-hotspot.min_tokens"] || experts.size() < 2) continue;
    ++judged;
    const double p = 1 / static_cast<double>(experts.size());
    const double mean = total * p;
    const double sigma = std::sqrt(total * p * (1 - p));  // of a fair router's binomial share
    for (const auto& [expert, tokens] : experts) {
      const double z = (tokens - mean) / sigma;
      if (tokens > context.thresholds["moe-hotspot.ratio"] * mean &&
          z > context.thresholds["moe-hotspot.z"]) {
        hot.push_back({layer, expert, tokens / mean, z});
      }
    }
  }
  double balance = kNaN;
  int32_t worst_layer = -1;
  for (const auto& [layer, by_rank] : ranks) {
    if (by_rank.size() < 2) continue;
    double total = 0;
    double most = 0;
    for (const auto& [rank, tokens] : by_rank) {
      total += tokens;
      most = std::max(most, tokens);
    }
    if (most == 0) continue;
    const double b = total / static_cast<double>(by_rank.size()) / most;
    if (std::isnan(balance) || b < balance) {
      balance = b;
      worst_layer = layer;
    }
  }
  if (judged == 0) {
    findings.abstained.push_back({"moe-hotspot", {"abstain.few_expert_tokens", {}}});
    return;
  }
  const bool unbalanced = balance < context.thresholds["moe-hotspot.warn_balance"];
  if (hot.empty() && !unbalanced) return;
  Finding finding{.id = "moe-hotspot", .phase = Phase::kUnknown};
  finding.severity = balance < context.thresholds["moe-hotspot.severe_balance"] ? Severity::kSevere
                                                                                : Severity::kWarn;
  finding.confidence = 0.85;
  finding.saving_ms_per_step = kNaN;
  std::sort(hot.begin(), hot.end(), [](const Hot& a, const Hot& b) { return a.ratio > b.ratio; });
  if (unbalanced) {
    finding.title = {"moe-hotspot.title.ranks",
                     {{"balance", Percent(balance)}, {"layer", std::to_string(worst_layer)}}};
  } else {
    finding.title = {"moe-hotspot.title", {{"count", std::to_string(hot.size())}}};
  }
  for (size_t i = 0; i < std::min<size_t>(hot.size(), 5); ++i) {
    finding.evidence.push_back({.text = {"moe-hotspot.evidence",
                                         {{"layer", std::to_string(hot[i].layer)},
                                          {"expert", std::to_string(hot[i].expert)},
                                          {"ratio", Number(hot[i].ratio)},
                                          {"z", Number(hot[i].z)}}},
                                .value = hot[i].ratio,
                                .unit = "ratio"});
  }
  finding.thresholds = {
      context.thresholds.Used(unbalanced ? "moe-hotspot.warn_balance" : "moe-hotspot.ratio")};
  finding.change = {"moe-hotspot.change", {}};
  finding.risk = {"moe-hotspot.risk", {}};
  finding.undo = {"moe-hotspot.undo", {}};
  findings.findings.push_back(std::move(finding));
}

namespace {

// A kind of collective in one step: same operation, size and group.
struct CollectiveGroup {
  double bus_bytes = 0;  // that a link carries (NCCL's bus bandwidth is this by the time)
  double bytes = 0;      // of a rank
  int64_t best_ns = 0;   // the shortest: the others may have waited for a rank
  int64_t total_ns = 0;
  uint32_t count = 0;
  uint32_t example = kNone;
};

// Bytes that a rank's link carries in one direction, by NCCL's definition of bus bandwidth;
// 0 for operations that have none.
double BusBytes(std::string_view name, double bytes, double ranks) {
  if (ranks < 2) return 0;
  if (name.find("allreduce") != std::string_view::npos) {
    return cost::RingAllReduceBytes(bytes, ranks);
  }
  // The larger side of a gather or scatter is the whole.
  const bool gathers = name.find("allgather") != std::string_view::npos ||
                       name.find("reduce_scatter") != std::string_view::npos;
  return gathers ? bytes * (ranks - 1) / ranks : 0;
}

std::vector<CollectiveGroup> DescribedCollectives(const RuleContext& context, const Step& step) {
  const Timeline& t = context.timeline;
  std::map<std::tuple<StringId, int64_t, int32_t>, CollectiveGroup> groups;
  for (const uint32_t s : context.steps.WorkOf(step)) {
    if (t.slices.category[s] != Category::kKernel || t.slices.detail[s] == kNone) continue;
    const uint32_t row = t.kernels[t.slices.detail[s]].collective;
    if (row == kNone) continue;
    const CollectiveDetail& c = t.collectives[row];
    const int64_t elements = std::max(c.in_elements, c.out_elements);
    if (elements <= 0) continue;
    CollectiveGroup& group = groups[{c.name, elements, c.group_size}];
    const int64_t ns = t.slices.dur_ns[s];
    if (group.count == 0) {
      group.bytes = static_cast<double>(elements) * CollectiveElementBytes(t.Name(c.dtype));
      group.bus_bytes = BusBytes(t.Name(c.name), group.bytes, c.group_size);
      group.example = s;
      group.best_ns = ns;
    }
    if (ns > 0 && ns < group.best_ns) {
      group.best_ns = ns;
      group.example = s;
    }
    group.total_ns += ns;
    ++group.count;
  }
  std::vector<CollectiveGroup> list;
  for (const auto& [key, group] : groups) {
    if (group.bus_bytes > 0 && group.best_ns > 0) list.push_back(group);
  }
  return list;
}

// Large messages that move slower than the links between the GPUs allow.
void SlowCollectives(const RuleContext& context, const Bucket& bucket, const Step& step,
                     Findings& findings) {
  const auto hardware = HardwareOf(context.timeline, context.index, step);
  if (!hardware || hardware->link_bytes_per_s <= 0) return;
  const double limit = context.thresholds["tp-collective.bandwidth_share"];
  Finding finding{.id = "tp-collective", .phase = step.phase};
  uint32_t count = 0;
  double worst = 1;
  double saving_ns = 0;
  for (const CollectiveGroup& group : DescribedCollectives(context, step)) {
    const double rate = group.bus_bytes / static_cast<double>(group.best_ns) * 1e9;
    const double share = rate / hardware->link_bytes_per_s;
    if (group.bytes < context.thresholds["tp-collective.min_message_mb"] * 1e6 || share >= limit) {
      continue;
    }
    count += group.count;
    worst = std::min(worst, share);
    saving_ns += static_cast<double>(group.best_ns) * (1 - share / limit) * group.count;
    const CollectiveDetail& c =
        context.timeline.collectives
            [context.timeline.kernels[context.timeline.slices.detail[group.example]].collective];
    finding.evidence.push_back({.text = {"tp-collective.evidence.slow",
                                         {{"name", std::string(context.timeline.Name(c.name))},
                                          {"mb", Number(group.bytes / 1e6)},
                                          {"ranks", std::to_string(c.group_size)},
                                          {"rate", Number(rate / 1e9)},
                                          {"gpu", std::string(hardware->name)},
                                          {"link", Number(hardware->link_bytes_per_s / 1e9)}}},
                                .slice = group.example,
                                .value = share,
                                .unit = "share"});
  }
  if (count == 0) return;
  finding.severity = Severity::kWarn;
  finding.confidence = ConfidenceFor(context, bucket, false) - 0.15;
  finding.title = {"tp-collective.title.slow",
                   {{"count", std::to_string(count)}, {"share", Percent(worst)}}};
  finding.saving_ms_per_step = saving_ns / 1e6;
  finding.thresholds = {context.thresholds.Used("tp-collective.bandwidth_share"),
                        context.thresholds.Used("tp-collective.min_message_mb")};
  finding.change = {"tp-collective.change.slow", {}};
  finding.risk = {"tp-collective.risk.socket", {}};
  finding.undo = {"tp-collective.undo.socket", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace

void TpCollective(const RuleContext& context, Findings& findings) {
  const Timeline& t = context.timeline;
  // Between GPU nodes a socket is never what was meant.
  size_t sockets = 0;
  for (const Transport& transport : t.transports) {
    sockets += t.Name(transport.via).find("NET/Socket") != std::string_view::npos ? 1 : 0;
  }
  if (sockets > 0) {
    Finding finding{.id = "tp-collective", .phase = Phase::kUnknown};
    finding.severity = Severity::kSevere;
    finding.confidence = 0.95;
    finding.saving_ms_per_step = kNaN;
    finding.title = {"tp-collective.title.socket", {{"count", std::to_string(sockets)}}};
    finding.change = {"tp-collective.change.socket", {}};
    finding.risk = {"tp-collective.risk.socket", {}};
    finding.undo = {"tp-collective.undo.socket", {}};
    findings.findings.push_back(std::move(finding));
  }
  bool judged = sockets > 0 || !t.transports.empty();
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kMixed}) {
    const Bucket* bucket = context.steps.Main(phase);
    if (bucket == nullptr || bucket->counted.empty()) continue;
    const uint32_t number = bucket->counted[bucket->counted.size() / 2];
    const Step& step = context.steps.all[number];
    if (step.num_work == 0) continue;
    judged = true;
    uint32_t count = 0;
    uint32_t example = kNone;
    for (const uint32_t s : context.steps.WorkOf(step)) {
      if (context.index.kind(s) != KernelClass::kCollective) continue;
      ++count;
      if (example == kNone) example = s;
    }
    if (count == 0) continue;
    SlowCollectives(context, *bucket, step, findings);
    const double exposed = MedianOver(*bucket, [&](uint32_t s) {
      const StepAccount& a = context.account(s);
      return static_cast<double>(a.exposed_communication_ns) /
             static_cast<double>(std::max<int64_t>(a.wall_ns, 1));
    });
    const uint32_t layers = FindLayers(context.index, context.steps, step).num_layers;
    const double per_layer = layers > 0 ? static_cast<double>(count) / layers : kNaN;
    const bool many = per_layer > context.thresholds["tp-collective.max_per_layer"];
    if (exposed <= context.thresholds["tp-collective.exposed_share"] && !many) continue;
    const double ns = MedianOver(*bucket, [&](uint32_t s) {
      return static_cast<double>(context.account(s).exposed_communication_ns);
    });
    Finding finding{.id = "tp-collective", .phase = phase};
    finding.severity = exposed > 0.3 ? Severity::kSevere : Severity::kWarn;
    // These kernels spin until the slowest rank arrives: their time is not transfer alone.
    finding.confidence = ConfidenceFor(context, *bucket, false) - 0.15;
    finding.title = {"tp-collective.title", {{"ms", Duration(ns)}, {"share", Percent(exposed)}}};
    finding.evidence.push_back({.text = {"tp-collective.evidence",
                                         {{"count", std::to_string(count)},
                                          {"per_layer", Number(per_layer)},
                                          {"kernel", std::string(t.SliceName(example))}}},
                                .slice = example,
                                .value = ns / 1e6,
                                .unit = "ms"});
    finding.saving_ms_per_step = ns / 2e6;  // half of it, where it can be overlapped
    finding.thresholds = {context.thresholds.Used(many ? "tp-collective.max_per_layer"
                                                       : "tp-collective.exposed_share"),
                          context.thresholds.Used("tp-collective.handbook_reshard_mb")};
    finding.change = {"tp-collective.change", {}};
    finding.risk = {"tp-collective.risk", {}};
    finding.undo = {"tp-collective.undo", {}};
    findings.findings.push_back(std::move(finding));
  }
  if (!judged) findings.abstained.push_back({"tp-collective", {"abstain.no_communication", {}}});
}

void RdmaJitter(const RuleContext& context, Findings& findings) {
  const std::vector<SignalSeries> nic = FindSignal(context.timeline, Signal::kNic);
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  const auto least = static_cast<size_t>(context.thresholds["rdma-jitter.min_outliers"]);
  if (nic.empty() || bucket == nullptr || bucket->counted.size() < 2 * least) {
    findings.abstained.push_back(
        {"rdma-jitter", {"abstain.no_nic", {{"least", std::to_string(2 * least)}}}});
    return;
  }
  const double typical = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  // A join finer than the clocks allow would invent causes.
  const SourceId steps_source = context.steps.all[bucket->counted.front()].source;
  for (const SignalSeries& s : nic) {
    if (static_cast<double>(JoinErrorNs(context.timeline, steps_source, s.source)) > typical / 4) {
      findings.abstained.push_back({"rdma-jitter", {"abstain.clock_error", {}}});
      return;
    }
  }
  SignalSeries residual;
  std::vector<double> magnitudes;
  for (const uint32_t s : bucket->counted) {
    residual.t_ns.push_back(context.steps.all[s].start_ns);
    residual.value.push_back(static_cast<double>(context.account(s).wall_ns) - typical);
    magnitudes.push_back(std::fabs(residual.value.back()));
  }
  const double mad = Median(magnitudes);
  const auto outliers = static_cast<size_t>(
      std::count_if(magnitudes.begin(), magnitudes.end(), [&](double m) { return m > 3 * mad; }));
  if (outliers < least) return;
  for (const SignalSeries& s : nic) {
    const Paired paired = Resample(residual, s);
    const CoMovement move = CompareChanges(paired.a, paired.b);
    if (move.p >= 0.01 || std::fabs(move.pearson) < 0.3) continue;
    Finding finding{.id = "rdma-jitter", .phase = Phase::kDecode};
    finding.severity = Severity::kWarn;
    finding.confidence = 0.65;
    finding.saving_ms_per_step = Median(magnitudes) / 1e6;
    finding.title = {"rdma-jitter.title",
                     {{"outliers", std::to_string(outliers)}, {"us", Number(mad / 1e3)}}};
    finding.evidence.push_back({.text = {"rdma-jitter.evidence",
                                         {{"nic", s.name},
                                          {"pearson", Number(move.pearson)},
                                          {"p", fmt::format("{:.3f}", move.p)}}},
                                .value = move.pearson,
                                .unit = "correlation"});
    finding.thresholds = {context.thresholds.Used("rdma-jitter.min_outliers"),
                          context.thresholds.Used("rdma-jitter.handbook_cq_us"),
                          context.thresholds.Used("rdma-jitter.handbook_sigma_us")};
    finding.change = {"rdma-jitter.change", {}};
    finding.risk = {"rdma-jitter.risk", {}};
    finding.undo = {"rdma-jitter.undo", {}};
    findings.findings.push_back(std::move(finding));
    return;
  }
}

}  // namespace fathom::diagnose
