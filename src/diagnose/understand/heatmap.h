#pragma once
// GPU time by generated token (decode step), layer and kernel class: where in the model the time of
// each token went. Layers come from the period of a step's kernels (understand/layers.h).
#include <cstdint>
#include <vector>

#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

struct HeatCell {
  uint32_t column = 0;  // of HeatMap::steps
  uint32_t layer = 0;
  KernelClass kind = KernelClass::kUnclassified;
  double us = 0;
};

struct HeatMap {
  std::vector<uint32_t> steps;  // one a column, in time order
  uint32_t num_layers = 0;      // 0: no decode steps whose kernels repeat by layer
  std::vector<HeatCell> cells;
};

// At most `max_steps` of the main decode bucket's steps, evenly spread.
HeatMap MakeHeatMap(const TraceIndex& index, const Steps& steps, size_t max_steps = 64);

}  // namespace fathom::diagnose
