#include "diagnose/understand/heatmap.h"

#include <algorithm>
#include <map>
#include <utility>

#include "diagnose/understand/layers.h"

namespace fathom::diagnose {

HeatMap MakeHeatMap(const TraceIndex& index, const Steps& steps, size_t max_steps) {
  HeatMap map;
  const Bucket* bucket = steps.Main(Phase::kDecode);
  if (bucket == nullptr) return map;
  const size_t n = bucket->counted.size();
  const size_t shown = std::min(n, max_steps);
  const Timeline& timeline = index.timeline();
  for (size_t i = 0; i < shown; ++i) {
    const uint32_t number = bucket->counted[i * n / shown];
    const Step& step = steps.all[number];
    if (step.num_work == 0) continue;
    const LayerMap layers = FindLayers(index, steps, step);
    if (layers.num_layers == 0) continue;
    const auto column = static_cast<uint32_t>(map.steps.size());
    map.steps.push_back(number);
    map.num_layers = std::max(map.num_layers, layers.num_layers);
    std::map<std::pair<uint32_t, KernelClass>, double> sums;
    const std::span<const uint32_t> work = steps.WorkOf(step);
    for (uint32_t k = 0; k < work.size(); ++k) {
      const int layer = layers.LayerOf(k);
      if (layer < 0) continue;
      sums[{static_cast<uint32_t>(layer), index.kind(work[k])}] +=
          static_cast<double>(timeline.slices.dur_ns[work[k]]) / 1e3;
    }
    for (const auto& [key, us] : sums) map.cells.push_back({column, key.first, key.second, us});
  }
  return map;
}

}  // namespace fathom::diagnose
