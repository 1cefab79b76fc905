#include "diagnose/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "diagnose/understand/layers.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {

Diagnosis Diagnose(Timeline timeline, const Thresholds& thresholds) {
  Diagnosis d;
  d.timeline = std::make_unique<Timeline>(std::move(timeline));
  DropImpossibleSamples(*d.timeline);
  d.index = std::make_unique<TraceIndex>(*d.timeline);
  d.steps = FindSteps(*d.index);
  d.accounts = Account(*d.index, d.steps);
  d.server_phases = FindServerPhases(*d.timeline);
  d.observations = Observe(*d.timeline);
  const RuleContext context{.timeline = *d.timeline,
                            .index = *d.index,
                            .steps = d.steps,
                            .accounts = d.accounts,
                            .thresholds = thresholds};
  d.findings = RunRules(context);
  d.recommendations = Recommend(context);
  return d;
}

std::vector<PhaseSummary> Summarise(const Diagnosis& d) {
  std::vector<PhaseSummary> summaries;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kMixed, Phase::kUnknown}) {
    PhaseSummary summary{.phase = phase};
    std::vector<double> wall, busy, launch, exposed, unexplained;
    for (const Bucket& bucket : d.steps.buckets) {
      if (bucket.phase != phase) continue;
      summary.steps += bucket.steps.size();
      for (const uint32_t step : bucket.counted) {
        const StepAccount& a = d.accounts[step];
        const auto total = static_cast<double>(std::max<int64_t>(a.wall_ns, 1));
        wall.push_back(total / 1e6);
        if (d.steps.all[step].num_work == 0) continue;
        busy.push_back(static_cast<double>(a.busy_ns) / total);
        launch.push_back(static_cast<double>(a.idle(GapCause::kLaunchBound)) / total);
        exposed.push_back(static_cast<double>(a.exposed_communication_ns) / total);
        unexplained.push_back(static_cast<double>(a.idle(GapCause::kUnknown)) / total);
      }
    }
    if (summary.steps == 0) continue;
    summary.counted = wall.size();
    summary.with_gpu = busy.size();
    summary.p50_ms = Median(wall);
    std::sort(wall.begin(), wall.end());
    const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(wall.size())));
    summary.p99_ms = wall[std::max<size_t>(rank, 1) - 1];
    summary.busy_share = Median(busy);
    summary.launch_bound_share = Median(launch);
    summary.exposed_communication_share = Median(exposed);
    summary.unexplained_share = Median(unexplained);
    const Bucket& main = *d.steps.Main(phase);
    if (!main.counted.empty()) {
      const Step& middle = d.steps.all[main.counted[main.counted.size() / 2]];
      summary.layers = FindLayers(*d.index, d.steps, middle).num_layers;
    }
    summaries.push_back(summary);
  }
  return summaries;
}

}  // namespace fathom::diagnose
