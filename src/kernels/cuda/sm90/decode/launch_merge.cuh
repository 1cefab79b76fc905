#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/merge.cuh"

namespace fathom::kernels::cuda {

// After a kernel that left partial results of `kRows` rows a block. On sm_90 it starts meanwhile.
template <int kDimV, int kRows, int kArchitecture>
cudaError_t RunDecodeMerge(const DecodeParams& params, cudaStream_t stream) {
  constexpr int kWarps = 8;
  const int rows = DecodeLineSize(params) * params.max_query_tokens * params.group *
                   (params.lists == nullptr ? params.num_kv_heads : 1);
  LaunchShape merge = {.threads = kWarps * 32, .overlap = kArchitecture >= 90};
  if (params.merge_by_block) {
    merge.blocks = rows * (kDimV / 64);
    return LaunchKernel(sm90::DecodeMergeKernel<kDimV, kRows, kWarps, true, kArchitecture>, merge,
                        stream, params);
  }
  const int units = rows * (kDimV == 64 ? 1 : kDimV / 128);
  merge.blocks = (units + kWarps - 1) / kWarps;
  return LaunchKernel(sm90::DecodeMergeKernel<kDimV, kRows, kWarps, false, kArchitecture>, merge,
                      stream, params);
}

}  // namespace fathom::kernels::cuda
