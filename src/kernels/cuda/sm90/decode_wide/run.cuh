#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"
#include "kernels/cuda/sm90/decode/run.cuh"
#include "kernels/cuda/sm90/decode_wide/kernel.cuh"

namespace fathom::kernels::cuda {

template <bool kFloat16>
cudaError_t RunDecodeWideSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::WideConfig;
  sm90::DecodeMaps maps;
  if (const cudaError_t status = MakeDecodeMaps<Config>(params, &maps); status != cudaSuccess) {
    return status;
  }
  if (const cudaError_t status = LaunchLarge<sm90::DecodeWideKernel<kFloat16>>(
          {.blocks = params.num_parts * params.row_tiles,
           .threads = Config::kThreads,
           .shared_bytes = Config::kSharedBytes,
           .together = params.merge_inside},
          stream, params, maps);
      status != cudaSuccess || params.merge_inside) {
    return status;
  }
  return RunDecodeMerge<Config::kDimV, Config::kRows, 90>(params, stream);
}

}  // namespace fathom::kernels::cuda
