#pragma once
// Layers without CPU parents: the kernels of a replayed graph come as one flat list, but a model's
// layers repeat, so the list is periodic. The period with the longest repeat is the layer.
#include <cstdint>
#include <vector>

#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

struct LayerMap {
  uint32_t period = 0;  // kernels a layer; 0: nothing repeats
  uint32_t first = 0;   // index in the step's work where the first repeat begins
  uint32_t num_layers = 0;
  double match = 0;  // share of kernels inside the repeats whose names agree with the next layer's

  // Layer of the step's k-th piece of work; -1 before the first and behind the last layer.
  int LayerOf(uint32_t k) const {
    if (period == 0 || k < first) return -1;
    const uint32_t layer = (k - first) / period;
    return layer < num_layers ? static_cast<int>(layer) : -1;
  }
};

LayerMap FindLayers(const TraceIndex& index, const Steps& steps, const Step& step);

}  // namespace fathom::diagnose
