#pragma once
// What the slow steps have that typical ones do not: the 99th percentile of a bucket beside its
// median, split by kernel class and cause of idle time. The parts add up to the excess.
#include <cstdint>
#include <optional>
#include <vector>

#include "diagnose/understand/accounting.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

// Below this the 99th percentile is the maximum.
inline constexpr size_t kMinPercentileSteps = 100;

struct TailPart {
  // One of both: time in which the GPU ran a class of kernels, or idled for a cause.
  std::optional<KernelClass> busy;
  std::optional<GapCause> idle;
  int64_t excess_ns = 0;  // negative: the slow step has less of it
};

struct Tail {
  Phase phase = Phase::kUnknown;
  uint32_t typical = 0;  // the median step: index into Steps::all
  uint32_t slow = 0;     // the step at the 99th percentile, the slowest below 100 steps
  size_t of = 0;         // counted steps of the bucket
  int64_t excess_ns = 0;
  int64_t unexplained_ns = 0;   // of it, idle time whose cause the trace does not show
  std::vector<TailPart> parts;  // all others, largest first
};

// One a phase, of its largest bucket with GPU work and at least kMinTailSteps counted steps;
// nothing else can be said about a tail.
std::vector<Tail> FindTails(const Steps& steps, const std::vector<StepAccount>& accounts);

}  // namespace fathom::diagnose
