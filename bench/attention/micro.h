#pragma once
// What the memory system itself does with the accesses that attention is made of.
#include <cstdint>
#include <string>
#include <vector>

namespace fathom::bench {

// Shared memory: clocks that an SM takes for one warp's access once the pipe is full.
struct StrideRow {
  std::string what;
  double clocks = 0;
  int64_t wavefronts = 0;  // of the host's bank model (cost/shared_banks.h)
};
std::vector<StrideRow> MeasureStrides();

// Global memory, cold L2: the same bytes read in runs of `run_bytes` in order or anywhere.
struct GatherRow {
  std::string what;
  int64_t run_bytes = 0;
  double us = 0;
  double gb_per_s = 0;
};
std::vector<GatherRow> MeasureGathers(int repeats);

}  // namespace fathom::bench
