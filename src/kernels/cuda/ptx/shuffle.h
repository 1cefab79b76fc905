#pragma once
// Data movement among lanes.
#include <cuda_runtime.h>

#include <cstdint>

namespace fathom::kernels::cuda::ptx {

// Among four neighbouring lanes: x[i] of lane j becomes x[j] of lane i.
__device__ __forceinline__ void TransposeQuad(uint32_t (&x)[4], int lane) {
  const bool odd = lane & 1;
  const bool high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t give = odd ? x[i] : x[i + 1];
    const uint32_t take = __shfl_xor_sync(~0u, give, 1);
    (odd ? x[i] : x[i + 1]) = take;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t give = high ? x[i] : x[i + 2];
    const uint32_t take = __shfl_xor_sync(~0u, give, 2);
    (high ? x[i] : x[i + 2]) = take;
  }
}

}  // namespace fathom::kernels::cuda::ptx
