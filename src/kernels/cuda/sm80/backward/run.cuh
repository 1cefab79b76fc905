#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm80/backward/kernel.cuh"

namespace fathom::kernels::cuda {

template <int kDim, bool kFloat16>
cudaError_t RunBackwardSm80(const BackwardParams& params, cudaStream_t stream) {
  using Config = sm80::BackwardConfig<kDim, kFloat16>;
  const int rows = params.batch * params.length * params.num_heads;
  cudaError_t status = LaunchKernel(sm80::BackwardRowsKernel<Config>,
                                    {.blocks = (rows + 7) / 8, .threads = 256}, stream, params);
  if (status != cudaSuccess) return status;
  LaunchShape shape = {.threads = Config::kThreads, .shared_bytes = Config::kSharedBytes};
  const int tiles = (params.length + Config::kRows - 1) / Config::kRows * params.batch;
  shape.blocks = tiles * params.num_kv_heads;
  status = LaunchLarge<sm80::BackwardKeysKernel<Config>>(shape, stream, params);
  if (status != cudaSuccess) return status;
  shape.blocks = tiles * params.num_heads;
  return LaunchLarge<sm80::BackwardQueriesKernel<Config>>(shape, stream, params);
}

}  // namespace fathom::kernels::cuda
