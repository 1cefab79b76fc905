#include "diagnose/rules/handbook.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "base/check.h"
#include "cost/hardware.h"
#include "diagnose/understand/classify.h"
#include "diagnose/understand/shapes.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

using Measured = std::optional<double>;

// A GPU that is busy for less of a sample's time did not work in it.
constexpr double kWorking = 0.05;

// --- sampled signals ---

struct GpuSignals {
  SignalSeries gpu;  // SM activity, else the share of time with a kernel
  SignalSeries other;
};

// GPU activity beside `other`, sampled by one source on one device.
std::optional<GpuSignals> BesideGpu(const RuleContext& context, Signal other) {
  std::vector<SignalSeries> gpu = FindSignal(context.timeline, Signal::kSmActive);
  if (gpu.empty()) gpu = FindSignal(context.timeline, Signal::kGpuBusy);
  for (const SignalSeries& a : gpu) {
    for (const SignalSeries& b : FindSignal(context.timeline, other)) {
      if (a.device == b.device && a.source == b.source) return GpuSignals{a, b};
    }
  }
  return std::nullopt;
}

Measured MeanWhileWorking(const RuleContext& context, Signal signal) {
  const auto signals = BesideGpu(context, signal);
  if (!signals) return std::nullopt;
  const Paired paired = Resample(signals->gpu, signals->other);
  double sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < paired.a.size(); ++i) {
    if (paired.a[i] < kWorking) continue;
    sum += paired.b[i];
    ++n;
  }
  return n > 0 ? Measured(sum / static_cast<double>(n)) : std::nullopt;
}

Measured ComputeIdle(const RuleContext& context) {
  const Measured active = MeanWhileWorking(context, Signal::kSmActive);
  return active ? Measured(1 - *active) : std::nullopt;
}

Measured MemoryBusy(const RuleContext& context) {
  return MeanWhileWorking(context, Signal::kDramActive);
}

Measured GpuBusy(const RuleContext& context) {
  const Measured sm = MeanWhileWorking(context, Signal::kSmActive);
  return sm ? sm : MeanWhileWorking(context, Signal::kGpuBusy);
}

double Covariance(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - mean_a) * (b[i] - mean_b);
  return sum / n;
}

Measured GpuMemoryCovariance(const RuleContext& context) {
  const auto signals = BesideGpu(context, Signal::kDramActive);
  if (!signals) return std::nullopt;
  const Paired paired = Resample(signals->gpu, signals->other);
  return paired.a.size() >= 2 ? Measured(Covariance(paired.a, paired.b)) : std::nullopt;
}

// Of memory activity and the link's use, both shares.
Measured MemoryPcieCovariance(const RuleContext& context) {
  for (const SignalSeries& dram : FindSignal(context.timeline, Signal::kDramActive)) {
    for (SignalSeries pcie : FindSignal(context.timeline, Signal::kPcieRx)) {
      if (pcie.device != dram.device || pcie.source != dram.source) continue;
      double link = 0;
      for (const DeviceInfo& device : context.timeline.sources[pcie.source].devices) {
        const cost::Hardware* hardware = cost::FindHardware(device.name);
        if (hardware != nullptr) link = std::max(link, hardware->host_bytes_per_s);
      }
      // Where the source names no GPU, what was seen at most stands for the link.
      if (link == 0) link = pcie.Quantile(1);
      if (link <= 0) continue;
      for (double& value : pcie.value) value /= link;
      const Paired paired = Resample(dram, pcie);
      if (paired.a.size() >= 2) return Covariance(paired.a, paired.b);
    }
  }
  return std::nullopt;
}

// (most - least) / most of what was allocated on a device, from the first decode step on.
Measured AllocatedSwing(const RuleContext& context) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  const auto series = FindSignal(context.timeline, Signal::kMemoryAllocated);
  if (bucket == nullptr || bucket->counted.empty() || series.empty()) return std::nullopt;
  const int64_t from_ns = context.steps.all[bucket->counted.front()].start_ns;
  Measured worst;
  for (const SignalSeries& s : series) {
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s.t_ns[i] < from_ns) continue;
      least = std::min(least, s.value[i]);
      most = std::max(most, s.value[i]);
    }
    if (most > 0) worst = std::max(worst.value_or(0), (most - least) / most);
  }
  return worst;
}

// --- steps ---

// Median over the typical bucket's counted steps of f(step), where they have GPU work.
template <class F>
Measured OfSteps(const RuleContext& context, Phase phase, F&& f) {
  const Bucket* bucket = context.steps.Main(phase);
  if (bucket == nullptr || bucket->counted.empty() ||
      context.steps.all[bucket->counted.front()].num_work == 0) {
    return std::nullopt;
  }
  return MedianOver(*bucket, f);
}

Measured GateMs(const RuleContext& context) {
  return OfSteps(context, Phase::kDecode, [&](uint32_t s) {
    return static_cast<double>(context.account(s).busy(KernelClass::kGate)) / 1e6;
  });
}

Measured LongestSoftmaxMs(const RuleContext& context) {
  return OfSteps(context, Phase::kPrefill, [&](uint32_t s) {
    int64_t longest = 0;
    for (const uint32_t k : context.steps.WorkOf(context.steps.all[s])) {
      if (context.index.kind(k) != KernelClass::kSoftmax) continue;
      longest = std::max(longest, context.timeline.slices.dur_ns[k]);
    }
    return static_cast<double>(longest) / 1e6;
  });
}

// What the first replay of a graph took beyond the bucket's typical step.
Measured FirstReplayExcessUs(const RuleContext& context) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || !bucket->graph_expected || bucket->counted.size() < kMinSteps ||
      !context.steps.all[bucket->steps.front()].warmup) {
    return std::nullopt;
  }
  const double typical = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  return (static_cast<double>(context.account(bucket->steps.front()).wall_ns) - typical) / 1e3;
}

std::vector<double> DecodeResidualsUs(const RuleContext& context) {
  std::vector<double> residuals;
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.size() < kMinTailSteps) return residuals;
  const double typical = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  for (const uint32_t s : bucket->counted) {
    residuals.push_back((static_cast<double>(context.account(s).wall_ns) - typical) / 1e3);
  }
  return residuals;
}

Measured StepSigmaUs(const RuleContext& context) {
  const std::vector<double> residuals = DecodeResidualsUs(context);
  if (residuals.empty()) return std::nullopt;
  return std::sqrt(std::max(0.0, Covariance(residuals, residuals)));
}

// What the slower half of the outlying steps, beyond three median deviations, has to spare.
Measured OutlierExcessUs(const RuleContext& context) {
  const std::vector<double> residuals = DecodeResidualsUs(context);
  if (residuals.empty()) return std::nullopt;
  std::vector<double> magnitudes, outliers;
  for (const double r : residuals) magnitudes.push_back(std::fabs(r));
  const double mad = Median(magnitudes);
  for (const double r : residuals) {
    if (r > 3 * mad) outliers.push_back(r);
  }
  return outliers.empty() ? 0 : Median(outliers);
}

// The smallest power of two that divides an inner or outer extent of a matrix product.
Measured ProductMultiple(const RuleContext& context) {
  Measured least;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Bucket* bucket = context.steps.Main(phase);
    if (bucket == nullptr || bucket->counted.empty()) continue;
    for (const uint32_t s : context.steps.WorkOf(context.steps.all[bucket->counted.front()])) {
      if (context.index.kind(s) != KernelClass::kGemm) continue;
      for (const Argument& argument : ArgumentsOf(context.timeline, context.index.op(s))) {
        if (argument.shapes.size() != 1 || argument.shape().size() < 2) continue;
        const int64_t extent = argument.shape().back();
        if (extent <= 0) continue;
        const auto multiple = static_cast<double>(extent & -extent);
        least = std::min(least.value_or(multiple), multiple);
      }
    }
  }
  return least;
}

// What the collectives of a typical step exchange, where the trace says how much.
Measured CollectiveMegabytes(const RuleContext& context) {
  const Timeline& t = context.timeline;
  bool any = false;
  Measured most;
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kMixed}) {
    const Measured mb = OfSteps(context, phase, [&](uint32_t s) {
      double bytes = 0;
      for (const uint32_t k : context.steps.WorkOf(context.steps.all[s])) {
        if (t.slices.category[k] != Category::kKernel || t.slices.detail[k] == kNone) continue;
        const uint32_t row = t.kernels[t.slices.detail[k]].collective;
        if (row == kNone) continue;
        any = true;
        const CollectiveDetail& c = t.collectives[row];
        bytes += static_cast<double>(std::max<int64_t>(c.in_elements, 0)) *
                 CollectiveElementBytes(t.Name(c.dtype));
      }
      return bytes / 1e6;
    });
    if (mb) most = std::max(most.value_or(0), *mb);
  }
  return any ? most : std::nullopt;
}

// --- expert loads ---

// Most and least loaded expert of a layer against its mean: the largest deviation of a layer that
// has enough tokens.
Measured ExpertDeviation(const RuleContext& context, bool above) {
  std::map<int32_t, std::map<int32_t, double>> layers;
  for (const ExpertLoad& load : context.timeline.expert_loads) {
    layers[load.layer][load.expert] += load.tokens;
  }
  Measured worst;
  for (const auto& [layer, experts] : layers) {
    double total = 0, most = 0, least = INFINITY;
    for (const auto& [expert, tokens] : experts) {
      total += tokens;
      most = std::max(most, tokens);
      least = std::min(least, tokens);
    }
    if (total < context.thresholds["moe-hotspot.min_tokens"] || experts.size() < 2) continue;
    const double mean = total / static_cast<double>(experts.size());
    const double deviation = above ? most / mean - 1 : 1 - least / mean;
    worst = std::max(worst.value_or(0), deviation);
  }
  return worst;
}

Measured HottestExpert(const RuleContext& context) { return ExpertDeviation(context, true); }
Measured ColdestExpert(const RuleContext& context) { return ExpertDeviation(context, false); }

// --- profiled kernels ---

// The extreme over kernels of numerator / denominator, sums of the metrics that the page has.
Measured WorstRatio(const RuleContext& context, std::initializer_list<std::string_view> numerator,
                    std::initializer_list<std::string_view> denominator) {
  const Timeline& t = context.timeline;
  const auto sum = [&](const ProfiledKernel& kernel,
                       std::initializer_list<std::string_view> names) {
    double total = 0;
    for (const std::string_view name : names) {
      const auto value = t.Metric(kernel, name);
      if (value && !std::isnan(*value)) total += *value;
    }
    return total;
  };
  Measured worst;
  for (const ProfiledKernel& kernel : t.profiled_kernels) {
    const double below = sum(kernel, denominator);
    if (below > 0) worst = std::max(worst.value_or(0), sum(kernel, numerator) / below);
  }
  return worst;
}

Measured SharedIssuedPerExecuted(const RuleContext& context) {
  return WorstRatio(context,
                    {"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                     "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"},
                    {"sass__inst_executed_shared_loads", "sass__inst_executed_shared_stores"});
}

Measured L2MissesPerLoad(const RuleContext& context) {
  return WorstRatio(context, {"lts__t_sectors_srcunit_tex_op_read_lookup_miss.sum"},
                    {"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"});
}

Measured LowestAttentionOccupancy(const RuleContext& context) {
  const Timeline& t = context.timeline;
  Measured lowest;
  for (const ProfiledKernel& kernel : t.profiled_kernels) {
    if (ClassifyKernelName(t.Name(kernel.name)) != KernelClass::kAttention) continue;
    const auto percent = t.Metric(kernel, "sm__warps_active.avg.pct_of_peak_sustained_active");
    if (percent && !std::isnan(*percent)) lowest = std::min(lowest.value_or(1), *percent / 100);
  }
  return lowest;
}

constexpr HandbookLimit kLimits[] = {
    {"compute-bound.handbook_compute_idle", false, ComputeIdle},
    {"compute-bound.handbook_memory_busy", false, MemoryBusy},
    {"compute-bound.handbook_gpu_busy", true, GpuBusy},
    {"compute-bound.handbook_covariance_low", true, GpuMemoryCovariance},
    {"host-transfer.handbook_covariance_high", false, MemoryPcieCovariance},
    {"allocator.handbook_swing", false, AllocatedSwing},
    {"allocator.handbook_swing_severe", false, AllocatedSwing},
    {"routing-latency.handbook_ms", false, GateMs},
    {"routing-latency.handbook_static_ms", false, GateMs},
    {"routing-latency.handbook_dynamic_ms", false, GateMs},
    {"softmax-pass.handbook_ms_8192", false, LongestSoftmaxMs},
    {"graph-miss.handbook_warmup_us", false, FirstReplayExcessUs},
    {"rdma-jitter.handbook_sigma_us", false, StepSigmaUs},
    {"rdma-jitter.handbook_cq_us", false, OutlierExcessUs},
    {"tensor-core.handbook_tile_multiple", true, ProductMultiple},
    {"tp-collective.handbook_reshard_mb", false, CollectiveMegabytes},
    {"moe-hotspot.handbook_deviation", false, HottestExpert},
    {"moe-hotspot.handbook_deviation_low", false, ColdestExpert},
    {"bank-conflict.handbook_ratio_moderate", false, SharedIssuedPerExecuted},
    {"bank-conflict.handbook_ratio_severe", false, SharedIssuedPerExecuted},
    {"uncoalesced.handbook_l2_misses", false, L2MissesPerLoad},
    {"head-imbalance.handbook_occupancy", true, LowestAttentionOccupancy},
};

std::string_view VerdictKey(std::string_view verdict) {
  if (verdict == "sound") return "handbook.evidence.sound";
  if (verdict == "plausible") return "handbook.evidence.plausible";
  if (verdict == "folklore") return "handbook.evidence.folklore";
  FATHOM_CHECK(verdict == "impossible", "{} is no verdict", verdict);
  return "handbook.evidence.impossible";
}

}  // namespace

std::span<const HandbookLimit> HandbookLimits() { return kLimits; }

void HandbookFigures(const RuleContext& context, Findings& findings) {
  for (const HandbookLimit& limit : kLimits) {
    const Threshold& threshold = context.thresholds.Get(limit.name);
    if (!threshold.enabled) continue;
    const std::string_view id = limit.name.substr(0, limit.name.find('.'));
    const Measured value = limit.measure(context);
    if (!value) {
      findings.abstained.push_back({id, {"abstain.handbook", {{"name", std::string(limit.name)}}}});
      continue;
    }
    if (limit.below ? *value >= threshold.value : *value <= threshold.value) continue;
    Finding finding{.id = id, .phase = Phase::kUnknown};
    finding.severity = Severity::kInfo;
    finding.confidence = 0.9;  // of the measurement; what it means, the verdict says
    finding.saving_ms_per_step = std::numeric_limits<double>::quiet_NaN();
    finding.title = {limit.below ? "handbook.title.below" : "handbook.title",
                     {{"name", std::string(limit.name)},
                      {"value", Number(*value)},
                      {"limit", Number(threshold.value)},
                      {"limit.unit", threshold.unit}}};
    finding.evidence.push_back({.text = {VerdictKey(threshold.verdict),
                                         {{"limit.claim", threshold.source},
                                          {"limit.exception", threshold.counter_example}}},
                                .value = *value,
                                .unit = "handbook"});
    finding.thresholds = {context.thresholds.Used(limit.name)};
    finding.change = {"handbook.change", {{"id", std::string(id)}}};
    finding.risk = {"handbook.risk", {}};
    finding.undo = {"handbook.undo", {{"name", std::string(limit.name)}}};
    findings.findings.push_back(std::move(finding));
  }
}

}  // namespace fathom::diagnose
