#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm80/decode/kernel.cuh"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"

namespace fathom::kernels::cuda {

template <int kDim, int kRows, bool kFloat16>
cudaError_t RunDecodeSm80(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm80::DecodeConfig<kDim, kRows, kFloat16>;
  const int groups = params.num_kv_heads * params.row_tiles;
  if (const cudaError_t status =
          LaunchLarge<sm80::DecodeKernel<Config>>({.blocks = params.num_parts * groups,
                                                   .threads = Config::kThreads,
                                                   .shared_bytes = Config::kSharedBytes},
                                                  stream, params);
      status != cudaSuccess) {
    return status;
  }
  return RunDecodeMerge<kDim, kRows, 80>(params, stream);
}

}  // namespace fathom::kernels::cuda
