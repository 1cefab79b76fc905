#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm80/prefill/kernel.cuh"

namespace fathom::kernels::cuda {

template <int kDimQk, int kDimV, bool kFloat16>
cudaError_t RunPrefillSm80(const PrefillParams& params, cudaStream_t stream) {
  using Config = sm80::PrefillConfig<kDimQk, kDimV, kFloat16>;
  return LaunchLarge<sm80::PrefillKernel<Config>>({.blocks = params.max_tiles * params.num_heads,
                                                   .threads = Config::kThreads,
                                                   .shared_bytes = Config::kSharedBytes},
                                                  stream, params);
}

}  // namespace fathom::kernels::cuda
