#include "diagnose/understand/tail.h"

#include <algorithm>
#include <cmath>

namespace fathom::diagnose {
std::vector<Tail> FindTails(const Steps& steps, const std::vector<StepAccount>& accounts) {
  std::vector<Tail> tails;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kMixed, Phase::kUnknown}) {
    const Bucket* bucket = steps.Main(phase);
    if (bucket == nullptr || bucket->counted.size() < kMinTailSteps) continue;
    if (steps.all[bucket->counted.front()].num_work == 0) continue;
    std::vector<uint32_t> order = bucket->counted;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return accounts[a].wall_ns < accounts[b].wall_ns; });
    const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(order.size())));
    Tail tail{.phase = phase,
              .typical = order[order.size() / 2],
              .slow = order[std::max<size_t>(rank, 1) - 1],
              .of = order.size()};
    const StepAccount& slow = accounts[tail.slow];
    const StepAccount& typical = accounts[tail.typical];
    tail.excess_ns = slow.wall_ns - typical.wall_ns;
    tail.unexplained_ns = slow.idle(GapCause::kUnknown) - typical.idle(GapCause::kUnknown);
    for (size_t i = 0; i < kNumKernelClasses; ++i) {
      tail.parts.push_back({.busy = static_cast<KernelClass>(i),
                            .idle = std::nullopt,
                            .excess_ns = slow.busy_by_class[i] - typical.busy_by_class[i]});
    }
    for (size_t i = 0; i < kNumGapCauses; ++i) {
      if (static_cast<GapCause>(i) == GapCause::kUnknown) continue;
      tail.parts.push_back({.busy = std::nullopt,
                            .idle = static_cast<GapCause>(i),
                            .excess_ns = slow.idle_by_cause[i] - typical.idle_by_cause[i]});
    }
    std::erase_if(tail.parts, [](const TailPart& part) { return part.excess_ns == 0; });
    std::stable_sort(
        tail.parts.begin(), tail.parts.end(),
        [](const TailPart& a, const TailPart& b) { return a.excess_ns > b.excess_ns; });
    tails.push_back(std::move(tail));
  }
  return tails;
}

}  // namespace fathom::diagnose
