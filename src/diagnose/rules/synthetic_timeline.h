#pragma once
// Timelines made by code, with one known fault or none: a decode server whose every time is chosen.
// Tests use them for what recordings cannot give: the same fault at any size, and clean runs.
#include <cstdint>
#include <string>
#include <string_view>

#include "diagnose/timeline.h"

namespace fathom::diagnose {

// One fault, injected into every decode step; zero is clean.
struct Faults {
  double kv_copy_share = 0;       // of busy time: an expanded K and V a layer
  double launch_gap_us = 0;       // idle time before each kernel, by a slow CPU
  double sync_us = 0;             // idle time behind one blocking call in the middle of the step
  double allocator_us = 0;        // idle time under cudaMalloc
  double plan_us = 0;             // CPU time of the attention operator, a new shape each step
  double scores_us = 0;           // passes over materialised scores, in prefill, a layer
  double slow_step_us = 0;        // a gap in one step of the decode bucket
  int attention_blocks = 264;     // thread blocks of the attention kernels
  double collective_us = 0;       // an exposed all-reduce after each of two projections a layer
  bool miss_graph_once = false;   // one decode step runs kernel by kernel
  int rope_kernels = 1;           // rotations a layer
  int gate_kernels = 0;           // routing kernels a layer, each as long as the others
  double attention_slowdown = 1;  // over a healthy kernel's time
  int64_t all_reduce_elements =
      0;                 // of the collectives, in bfloat16 over 8 ranks; 0: not described
  double jitter_us = 0;  // a gap in an irregular half of the decode steps (Jitters)
};

struct SyntheticOptions {
  int decode_steps = 24;
  int layers = 4;
  double kernel_us = 20;  // of each of a layer's eight kernels
  bool graph = false;     // steps are replayed from a graph
  bool with_stack = false;
  int64_t context_tokens = 4096;
  Faults faults;
};

// Whether `jitter_us` holds back decode step `number`.
bool Jitters(int number);

// A trace like Kineto's: annotations prefill, decode_step_i; operators with shapes, launches,
// kernels on one H200.
Timeline MakeSynthetic(const SyntheticOptions& options);

}  // namespace fathom::diagnose
