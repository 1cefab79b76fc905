#include "diagnose/understand/signals.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string_view>

namespace fathom::diagnose {
namespace {

struct Alias {
  Signal signal;
  std::string_view name;  // exact, or a prefix when it ends in '*'
  double scale;           // to the signal's unit
};

// In order of trust: counters of the hardware before utilisation averages.
constexpr Alias kAliases[] = {
    {Signal::kSmActive, "DCGM_FI_PROF_SM_ACTIVE", 1},
    {Signal::kSmActive, "SMs Active*", 0.01},
    {Signal::kSmActive, "SM Active*", 0.01},
    {Signal::kTensorActive, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1},
    {Signal::kTensorActive, "Tensor Active*", 0.01},
    {Signal::kDramActive, "DCGM_FI_PROF_DRAM_ACTIVE", 1},
    {Signal::kDramActive, "DRAM Read Bandwidth*", 0.01},
    {Signal::kDramActive, "gpu_memory_busy", 1},
    {Signal::kDramActive, "DCGM_FI_DEV_MEM_COPY_UTIL", 0.01},
    {Signal::kDramActive, "mem", 0.01},
    {Signal::kGpuBusy, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1},
    {Signal::kGpuBusy, "gpu_busy", 1},
    {Signal::kGpuBusy, "DCGM_FI_DEV_GPU_UTIL", 0.01},
    {Signal::kGpuBusy, "sm", 0.01},
    {Signal::kPcieRx, "DCGM_FI_PROF_PCIE_RX_BYTES", 1},
    {Signal::kPcieRx, "pcie_rx", 1},
    {Signal::kPcieRx, "rxpci", 1e6},
    {Signal::kPcieTx, "DCGM_FI_PROF_PCIE_TX_BYTES", 1},
    {Signal::kPcieTx, "pcie_tx", 1},
    {Signal::kPcieTx, "txpci", 1e6},
    {Signal::kNvlink, "DCGM_FI_PROF_NVLINK_RX_BYTES", 1},
    {Signal::kNvlink, "nvlink_rx", 1},
    {Signal::kNic, "IB: Bytes sent*", 1},
    {Signal::kNic, "Bytes sent*", 1},
    {Signal::kRunning, "fathom:num_requests_running", 1},
    {Signal::kRunning, "vllm:num_requests_running", 1},
    {Signal::kRunning, "sglang:num_running_reqs", 1},
    {Signal::kWaiting, "fathom:num_requests_waiting", 1},
    {Signal::kWaiting, "vllm:num_requests_waiting", 1},
    {Signal::kWaiting, "sglang:num_queue_reqs", 1},
    {Signal::kKvUsage, "fathom:kv_cache_usage_perc", 1},
    {Signal::kKvUsage, "vllm:kv_cache_usage_perc", 1},
    {Signal::kKvUsage, "vllm:gpu_cache_usage_perc", 1},
    {Signal::kKvUsage, "sglang:token_usage", 1},
    {Signal::kPrefixQueries, "fathom:prefix_cache_queries_total", 1},
    {Signal::kPrefixQueries, "vllm:prefix_cache_queries_total", 1},
    {Signal::kPrefixQueries, "vllm:gpu_prefix_cache_queries_total", 1},
    {Signal::kPrefixHits, "fathom:prefix_cache_hits_total", 1},
    {Signal::kPrefixHits, "vllm:prefix_cache_hits_total", 1},
    {Signal::kPrefixHits, "vllm:gpu_prefix_cache_hits_total", 1},
    {Signal::kPreemptions, "fathom:num_preemptions_total", 1},
    {Signal::kPreemptions, "vllm:num_preemptions_total", 1},
    {Signal::kGenerated, "fathom:generation_tokens_total", 1},
    {Signal::kGenerated, "vllm:generation_tokens_total", 1},
    {Signal::kNumaRemote, "numa_remote_pages", 1},
    {Signal::kGpuThreadsNear, "gpu_threads_near", 1},
    {Signal::kGpuThreadsFar, "gpu_threads_far", 1},
    {Signal::kMemoryReserved, "allocator.reserved_bytes", 1},
    {Signal::kMemoryAllocated, "allocator.allocated_bytes", 1},
};

bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

// DCGM lists each MIG instance as another row of its GPU.
bool IsMigInstance(const Timeline& timeline, const Series& series) {
  return timeline.Name(series.labels).find("GPU_I_ID=") != std::string_view::npos;
}

// Whether the GPU itself has a row beside this instance's.
bool HasWholeGpu(const Timeline& timeline, const Series& instance) {
  return std::any_of(timeline.series.begin(), timeline.series.end(), [&](const Series& s) {
    return s.name == instance.name && s.source == instance.source && s.device == instance.device &&
           !IsMigInstance(timeline, s);
  });
}

// Shares end at 1 (counters read a little late show a little more), threads at what Linux can have;
// nothing else is negative.
bool IsPossible(Signal signal, double value) {
  constexpr double kMostShare = 1.05;
  const bool share = signal == Signal::kGpuBusy || signal == Signal::kSmActive ||
                     signal == Signal::kTensorActive || signal == Signal::kDramActive ||
                     signal == Signal::kKvUsage;
  const bool threads = signal == Signal::kGpuThreadsNear || signal == Signal::kGpuThreadsFar;
  constexpr double kMostThreads = 1 << 22;  // PID_MAX_LIMIT
  return value >= 0 && (!share || value <= kMostShare) && (!threads || value <= kMostThreads);
}

int64_t MedianPeriod(const SignalSeries& s) {
  std::vector<int64_t> steps;
  for (size_t i = 1; i < s.t_ns.size(); ++i) steps.push_back(s.t_ns[i] - s.t_ns[i - 1]);
  if (steps.empty()) return 0;
  std::nth_element(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2),
                   steps.end());
  return steps[steps.size() / 2];
}

double Pearson(const double* a, const double* b, size_t n) {
  double ma = 0, mb = 0;
  for (size_t i = 0; i < n; ++i) {
    ma += a[i];
    mb += b[i];
  }
  ma /= static_cast<double>(n);
  mb /= static_cast<double>(n);
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < n; ++i) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i] - mb) * (b[i] - mb);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

std::vector<double> Ranks(const std::vector<double>& v) {
  std::vector<size_t> order(v.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return v[x] < v[y]; });
  std::vector<double> ranks(v.size());
  for (size_t i = 0; i < order.size();) {  // ties share the mean rank
    size_t j = i;
    while (j < order.size() && v[order[j]] == v[order[i]]) ++j;
    for (size_t k = i; k < j; ++k) ranks[order[k]] = static_cast<double>(i + j - 1) / 2;
    i = j;
  }
  return ranks;
}

// Correlation of a[i] with b[i + lag].
double AtLag(const std::vector<double>& a, const std::vector<double>& b, int lag) {
  const size_t shift = static_cast<size_t>(std::abs(lag));
  const size_t n = a.size() - shift;
  return lag >= 0 ? Pearson(a.data(), b.data() + shift, n) : Pearson(a.data() + shift, b.data(), n);
}

}  // namespace

double SignalSeries::Mean() const {
  if (value.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(value.begin(), value.end(), 0.0) / static_cast<double>(value.size());
}

double SignalSeries::Quantile(double q) const {
  if (value.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sorted = value;
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

void DropImpossibleSamples(Timeline& timeline) {
  std::vector<const Alias*> meaning(timeline.series.size());  // [series]; null: no signal
  for (size_t s = 0; s < timeline.series.size(); ++s) {
    const std::string_view name = timeline.Name(timeline.series[s].name);
    for (const Alias& alias : kAliases) {
      if (meaning[s] == nullptr && Matches(alias.name, name)) meaning[s] = &alias;
    }
  }
  Samples& samples = timeline.samples;
  size_t kept = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint32_t series = samples.series[i];
    const Alias* alias = meaning[series];
    if (alias != nullptr && !IsPossible(alias->signal, samples.value[i] * alias->scale)) {
      ReadStats& stats = timeline.sources[timeline.series[series].source].stats;
      stats.Count(Defect::kImpossibleValue, DefectCount::kNoOffset);
      continue;
    }
    samples.t_ns[kept] = samples.t_ns[i];
    samples.value[kept] = samples.value[i];
    samples.series[kept++] = series;
  }
  samples.t_ns.resize(kept);
  samples.value.resize(kept);
  samples.series.resize(kept);
}

std::vector<SignalSeries> FindSignal(const Timeline& timeline, Signal signal) {
  std::vector<SignalSeries> found;
  for (const Alias& alias : kAliases) {
    if (alias.signal != signal) continue;
    std::map<uint32_t, size_t> place;  // series -> index in found
    for (uint32_t s = 0; s < timeline.series.size(); ++s) {
      const Series& series = timeline.series[s];
      if (!Matches(alias.name, timeline.Name(series.name))) continue;
      if (IsMigInstance(timeline, series) && HasWholeGpu(timeline, series)) continue;
      place[s] = found.size();
      found.push_back({.t_ns = {},
                       .value = {},
                       .name = std::string(timeline.Name(series.name)),
                       .device = series.device,
                       .source = series.source});
    }
    if (place.empty()) continue;
    for (size_t i = 0; i < timeline.samples.size(); ++i) {
      const auto it = place.find(timeline.samples.series[i]);
      if (it == place.end()) continue;
      found[it->second].t_ns.push_back(timeline.samples.t_ns[i]);
      found[it->second].value.push_back(timeline.samples.value[i] * alias.scale);
    }
  }
  std::erase_if(found, [](const SignalSeries& s) { return s.value.empty(); });
  return found;
}

Paired Resample(const SignalSeries& a, const SignalSeries& b) {
  Paired paired;
  paired.period_ns = std::max(MedianPeriod(a), MedianPeriod(b));
  if (paired.period_ns <= 0 || a.t_ns.empty() || b.t_ns.empty()) return paired;
  const int64_t begin = std::max(a.t_ns.front(), b.t_ns.front());
  const int64_t end = std::min(a.t_ns.back(), b.t_ns.back());
  size_t i = 0;
  size_t j = 0;
  const auto average = [&](const SignalSeries& s, size_t& at, int64_t from, int64_t to,
                           double* mean) {
    while (at < s.size() && s.t_ns[at] < from) ++at;
    double sum = 0;
    size_t n = 0;
    for (size_t k = at; k < s.size() && s.t_ns[k] < to; ++k, ++n) sum += s.value[k];
    *mean = n > 0 ? sum / static_cast<double>(n) : 0;
    return n > 0;
  };
  const auto next = [](const SignalSeries& s, size_t& at, int64_t from) {
    while (at < s.size() && s.t_ns[at] < from) ++at;
    return at < s.size() ? s.t_ns[at] : INT64_MAX;
  };
  for (int64_t t = begin; t <= end;) {
    const int64_t until = t > INT64_MAX - paired.period_ns ? INT64_MAX : t + paired.period_ns;
    double x = 0;
    double y = 0;
    // Both cursors go on, also where only one series has samples.
    const bool in_a = average(a, i, t, until, &x);
    const bool in_b = average(b, j, t, until, &y);
    if (in_a && in_b) {
      paired.a.push_back(x);
      paired.b.push_back(y);
    }
    // Over a pause, to the period in which both go on: it may be years after.
    const int64_t resume = std::max({until, next(a, i, until), next(b, j, until)});
    if (resume == INT64_MAX) break;
    const auto passed = static_cast<uint64_t>(resume) - static_cast<uint64_t>(begin);
    const auto period = static_cast<uint64_t>(paired.period_ns);
    t = static_cast<int64_t>(static_cast<uint64_t>(begin) + passed / period * period);
  }
  return paired;
}

CoMovement CompareChanges(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr int kMaxLag = 5;
  constexpr int kPermutations = 1000;
  CoMovement result;
  std::vector<double> da;
  std::vector<double> db;
  for (size_t i = 1; i < std::min(a.size(), b.size()); ++i) {
    da.push_back(a[i] - a[i - 1]);
    db.push_back(b[i] - b[i - 1]);
  }
  result.n = da.size();
  if (da.size() < 2 * kMaxLag + 2) return result;
  const auto strongest = [&](const std::vector<double>& x, const std::vector<double>& y, int* at) {
    double best = 0;
    for (int lag = -kMaxLag; lag <= kMaxLag; ++lag) {
      const double r = AtLag(x, y, lag);
      if (std::fabs(r) > std::fabs(best)) {
        best = r;
        if (at != nullptr) *at = lag;
      }
    }
    return best;
  };
  result.pearson = strongest(da, db, &result.lag);
  result.spearman = AtLag(Ranks(da), Ranks(db), result.lag);
  std::mt19937_64 random(20261129);
  std::vector<double> shuffled = db;
  int reached = 0;
  for (int i = 0; i < kPermutations; ++i) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    reached += std::fabs(strongest(da, shuffled, nullptr)) >= std::fabs(result.pearson) ? 1 : 0;
  }
  result.p = (reached + 1.0) / (kPermutations + 1.0);
  return result;
}

}  // namespace fathom::diagnose
