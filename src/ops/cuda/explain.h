#pragma once
// What an attention call costs, what bounds it, and how Fathom's kernels would run it: computed on
// the host for any GPU of cost::KnownHardware, without one.
#include <optional>
#include <string>
#include <vector>

#include "cost/attention.h"
#include "ops/cuda/policies.h"
#include "ops/cuda/shared_access.h"

namespace fathom::ops {

struct ExplainOptions {
  Reduction reduction = Reduction::kBalanced;
  DecodeTuning decode_tuning;
  PrefillTuning prefill_tuning;
  std::vector<std::string> policies;  // empty: all
  double global_gb_per_s = 0;         // for the policy handbook-io
  double measured_us = 0;             // 0: none
};

struct Explanation {
  std::string name;
  std::string gpu;
  cost::Cost floor;               // what no implementation goes below
  double expansion_flops = 0;     // of its FLOPs, those that make keys and values of latents
  std::vector<cost::Roof> roofs;  // the one that binds first
  double ridge = 0;               // FLOPs a byte where HBM and tensor cores take equally long
  cost::LevelBytes unfused;
  std::string plan;  // one line, or why there is none

  // With a kernel for these head dims (also when this GPU cannot run it).
  struct Kernel {
    AttentionKernel kernel;
    cost::LevelBytes fused;
    double flops = 0;         // of whole tiles: masked pairs and padding rows too
    double shared_us = 0;     // what the plan's shared-memory bytes take at 128 bytes a clock an SM
    int64_t tiles = 0;        // visited
    int64_t dense_tiles = 0;  // that a kernel without tile lists would visit
    std::vector<SharedAccess> shared;
  };
  std::optional<Kernel> kernel;
  std::optional<ScheduleReport> schedule;  // with a plan
  std::vector<PolicyRow> policies;
  double measured_us = 0;

  double floor_us() const { return roofs.front().seconds() * 1e6; }
};

Result<Explanation> Explain(const AttentionCase& problem, const cost::Hardware& hardware,
                            const ExplainOptions& options);

// For a terminal.
std::string ToText(const Explanation& explanation);

}  // namespace fathom::ops
