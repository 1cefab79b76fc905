#pragma once
// The same quantity under its many names: GPU use is "sm" in dmon, DCGM_FI_DEV_GPU_UTIL in DCGM,
// "SM Active" in Nsight Systems. Signals are in one unit whatever the source: shares 0..1, bytes
// per second, counts.
#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

enum class Signal : uint8_t {
  kGpuBusy,          // share of time with a kernel running; saturates early
  kSmActive,         // share of SM-cycles with a warp
  kTensorActive,     // share
  kDramActive,       // share of the memory's cycles, or of time with traffic
  kPcieRx,           // bytes/s to the GPU
  kPcieTx,           // bytes/s from the GPU
  kNvlink,           // bytes/s, both directions
  kNic,              // bytes/s
  kRunning,          // requests
  kWaiting,          // requests
  kKvUsage,          // share
  kPrefixQueries,    // tokens, growing
  kPrefixHits,       // tokens, growing
  kPreemptions,      // growing
  kGenerated,        // tokens, growing
  kNumaRemote,       // pages/s allocated on another node than wished
  kGpuThreadsNear,   // threads at work for a GPU, on its NUMA node
  kGpuThreadsFar,    // on another node
  kMemoryReserved,   // bytes held by the allocator
  kMemoryAllocated,  // bytes in use
};

struct SignalSeries {
  std::vector<int64_t> t_ns;
  std::vector<double> value;
  std::string name;  // as the producer calls it
  int32_t device = -1;
  SourceId source = 0;

  size_t size() const { return value.size(); }
  double Mean() const;
  double Quantile(double q) const;
};

// Takes out the samples that no such signal can have (a share of 3, a negative rate) and counts
// them among the defects of their source.
void DropImpossibleSamples(Timeline& timeline);

// All series of that signal with at least one sample; the better-defined source first.
std::vector<SignalSeries> FindSignal(const Timeline& timeline, Signal signal);

// Two series on a common grid (the coarser of both sampling periods), where both have samples.
struct Paired {
  std::vector<double> a, b;
  int64_t period_ns = 0;
};
Paired Resample(const SignalSeries& a, const SignalSeries& b);

// How the changes of two signals go together, best over lags of -5..5 periods, with the chance that
// shuffled data reach it (permutation test, fixed seed). Positive lag: a leads.
struct CoMovement {
  double pearson = 0;
  double spearman = 0;
  int lag = 0;
  double p = 1;
  size_t n = 0;
};
CoMovement CompareChanges(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace fathom::diagnose
