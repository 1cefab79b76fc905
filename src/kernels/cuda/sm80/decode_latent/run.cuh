#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm80/decode_latent/kernel.cuh"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"

namespace fathom::kernels::cuda {

template <int kRows, bool kFloat16>
cudaError_t RunDecodeLatentSm80(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm80::LatentConfig<kRows, kFloat16>;
  if (const cudaError_t status = LaunchLarge<sm80::DecodeLatentKernel<Config>>(
          {.blocks = params.num_parts * params.row_tiles,
           .threads = Config::kThreads,
           .shared_bytes = Config::kSharedBytes},
          stream, params);
      status != cudaSuccess) {
    return status;
  }
  return RunDecodeMerge<Config::kDimV, kRows, 80>(params, stream);
}

}  // namespace fathom::kernels::cuda
