#pragma once
// Where the wall time of a step went, so that it adds up: busy time of the GPU by kernel class plus
// idle time by cause equals the wall time, to the nanosecond. Kernels of one stream may overlap
// (programmatic dependent launch), so busy time is a union of intervals.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

// Why the GPU had nothing to run.
enum class GapCause : uint8_t {
  kLaunchBound,   // the CPU launched the next work only after the GPU had run dry
  kSyncCall,      // a synchronising call drained the queue before the next launch
  kAllocator,     // device memory was being allocated, freed or mapped
  kPlanBuilding,  // an operator computed on the CPU before its first launch (plan, autotuning)
  kModuleLoad,    // code was being compiled or loaded
  kGraphMiss,     // launched late, kernel by kernel, where comparable steps replay a graph
  kPreempted,     // the launching thread was off the CPU
  kProfiler,      // the profiler's own work
  kQueued,        // the next work had been queued: dependencies, graph nodes, the GPU's front end
  kUnknown,       // the trace does not show who launched what
};
inline constexpr size_t kNumGapCauses = static_cast<size_t>(GapCause::kUnknown) + 1;
std::string_view GapCauseName(GapCause cause);  // "launch-bound", ...

struct Gap {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  GapCause cause = GapCause::kUnknown;
  uint32_t culprit = kNone;  // the call or operator that the cause names
  uint32_t next = kNone;     // the work that ended the gap; kNone for the one at a step's end
  int64_t length_ns() const { return end_ns - start_ns; }
};

struct StepAccount {
  int64_t wall_ns = 0;
  int64_t busy_ns = 0;
  std::array<int64_t, kNumKernelClasses> busy_by_class{};  // sums to busy_ns
  std::array<int64_t, kNumGapCauses> idle_by_cause{};      // sums to wall_ns - busy_ns
  int64_t communication_ns = 0;                            // union of all communication
  int64_t exposed_communication_ns = 0;                    // of it, with no other work running
  uint32_t num_kernels = 0;
  uint32_t num_launches = 0;  // API calls that started work; a graph launch is one
  std::vector<Gap> gaps;      // in time order

  int64_t busy(KernelClass c) const { return busy_by_class[static_cast<size_t>(c)]; }
  int64_t idle(GapCause c) const { return idle_by_cause[static_cast<size_t>(c)]; }
};

// One account a step, in the order of Steps::all.
std::vector<StepAccount> Account(const TraceIndex& index, const Steps& steps);

// API calls by what they do to the queue.
bool IsSynchronising(std::string_view call);  // waits on the CPU for the GPU
bool IsAllocation(std::string_view call);     // allocates, frees or maps device memory
bool IsModuleLoad(std::string_view call);     // loads, links or compiles device code

}  // namespace fathom::diagnose
