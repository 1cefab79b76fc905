#pragma once
// Where CPU time went, as a tree of frames: from sampled stacks (perf, Nsight Systems) where there
// are any, else from recorded Python calls.
#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/understand/trace_index.h"

namespace fathom::diagnose {

struct FlameNode {
  std::string name;
  double value = 0;                 // with its children
  std::vector<FlameNode> children;  // largest first
};

struct Flame {
  FlameNode root;
  std::string unit;  // "ms", or what was sampled: "cycles", "samples" of several events
};

// Nodes below `least_share` of the whole are left out. An empty root: no stacks were recorded.
Flame MakeFlame(const TraceIndex& index, double least_share = 0.002);

}  // namespace fathom::diagnose
