#pragma once
// Where the threads ran that feed the GPUs, as the live sampler counted them.
#include <vector>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

// Readings of threads that used CPU time since the reading before, of the processes of one GPU.
struct GpuThreads {
  int32_t gpu = -1;
  int32_t node = -1;    // the GPU's; -1: not said
  double near = 0;      // readings on that node
  double far = 0;       // on another
  bool listed = false;  // the driver named the processes; else the user did

  double readings() const { return near + far; }
  double far_share() const { return far / readings(); }
};

// By source and GPU, those with a reading.
std::vector<GpuThreads> FindGpuThreads(const Timeline& timeline);

// NUMA nodes of the machine that was sampled, of the largest where there are several; 0: not said.
int NumaNodes(const Timeline& timeline);

}  // namespace fathom::diagnose
