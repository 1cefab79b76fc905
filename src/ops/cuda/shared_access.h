#pragma once
// The shared-memory accesses of the attention kernels, put through the bank model
// (cost/shared_banks.h): what each costs as the kernel does it, and what it would cost with rows of
// 128 bytes that are not swizzled. Addresses come from the functions and constants that the kernels
// use.
#include <string>
#include <vector>

#include "cost/shared_banks.h"
#include "ops/cuda/gpu.h"

namespace fathom::ops {

struct SharedAccess {
  std::string what;
  bool main_loop = true;   // of every key tile; else once an item
  cost::Wavefronts found;  // of one tile (or item), all warps of one warpgroup
  cost::Wavefronts plain;  // the same without the swizzle
};

std::vector<SharedAccess> DecodeSharedAccesses(const AttentionKernel& kernel);
std::vector<SharedAccess> PrefillSharedAccesses(const AttentionKernel& kernel);

// Of the main loop.
cost::Wavefronts MainLoopWavefronts(const std::vector<SharedAccess>& accesses);

}  // namespace fathom::ops
