#pragma once
// One diagnosis: inputs read, steps found and accounted for, rules run. Reports render it.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "diagnose/finding.h"
#include "diagnose/rules/recommend.h"
#include "diagnose/rules/rule.h"
#include "diagnose/timeline.h"
#include "diagnose/understand/accounting.h"
#include "diagnose/understand/observations.h"
#include "diagnose/understand/server_phases.h"
#include "diagnose/understand/steps.h"
#include "diagnose/understand/trace_index.h"

namespace fathom::diagnose {

struct Diagnosis {
  std::unique_ptr<Timeline> timeline;  // the index refers to it: its address must not change
  std::unique_ptr<TraceIndex> index;
  Steps steps;
  std::vector<StepAccount> accounts;  // one a step
  std::vector<ServerPhase> server_phases;
  std::vector<Observation> observations;
  Findings findings;
  std::vector<Recommendation> recommendations;
};

Diagnosis Diagnose(Timeline timeline, const Thresholds& thresholds);

// What a phase's steps were like; reports and comparisons share it.
struct PhaseSummary {
  Phase phase = Phase::kUnknown;
  size_t steps = 0;               // found
  size_t counted = 0;             // without warm-up
  size_t with_gpu = 0;            // of them, with GPU rows: the shares below are theirs
  double p50_ms = 0, p99_ms = 0;  // p99 is the maximum below 100 steps
  double busy_share = 0;          // medians over with_gpu steps; NaN when there are none
  double launch_bound_share = 0;
  double exposed_communication_share = 0;
  double unexplained_share = 0;  // idle time without a cause
  uint32_t layers = 0;           // by which the kernels of its middle step repeat; 0: they do not
};
std::vector<PhaseSummary> Summarise(const Diagnosis& diagnosis);

}  // namespace fathom::diagnose
