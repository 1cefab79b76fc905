#pragma once
// Quantised cache elements, four bytes a register, to pairs of bf16. Exact: both codes have no more
// mantissa than bf16.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/ptx/mma.h"

namespace fathom::kernels::cuda::sm90 {

// int8: `x` has a code in the low byte of each half. 128 + its low seven bits, less 128 or, with
// the sign bit (which is the lowest bit of the exponent), 256.
__device__ __forceinline__ uint32_t Int8ToBf16x2(uint32_t x) {
  constexpr uint32_t kOne = 0x3f803f80;
  return ptx::FmaBf16x2((x & 0x007f007f) | 0x43004300, kOne, (x & 0x00800080) | 0xc300c300);
}
// e4m3: `x` has a code in the high byte of each half. Exponent and mantissa in place are 2^120 too
// small; the product handles subnormal codes too.
__device__ __forceinline__ uint32_t E4m3ToBf16x2(uint32_t x) {
  constexpr uint32_t kTwoTo120 = 0x7b807b80;
  constexpr uint32_t kMinusZero = 0x80008000;
  return ptx::FmaBf16x2((x & 0x80008000) | (x >> 4 & 0x07f007f0), kTwoTo120, kMinusZero);
}

// Bytes 0, 1 and bytes 2, 3.
template <CacheCode kCode>
__device__ __forceinline__ void ConvertKeys(uint32_t raw, uint32_t& first, uint32_t& second) {
  if constexpr (kCode == CacheCode::kInt8) {
    first = Int8ToBf16x2(__byte_perm(raw, 0, 0x4140));
    second = Int8ToBf16x2(__byte_perm(raw, 0, 0x4342));
  } else {
    first = E4m3ToBf16x2(__byte_perm(raw, 0, 0x1404));
    second = E4m3ToBf16x2(__byte_perm(raw, 0, 0x3424));
  }
}
// Bytes 0, 2 and bytes 1, 3.
template <CacheCode kCode>
__device__ __forceinline__ void ConvertValues(uint32_t raw, uint32_t& first, uint32_t& second) {
  if constexpr (kCode == CacheCode::kInt8) {
    first = Int8ToBf16x2(raw);  // the other bytes are masked away
    second = Int8ToBf16x2(raw >> 8);
  } else {
    first = E4m3ToBf16x2(raw << 8);
    second = E4m3ToBf16x2(raw);
  }
}

}  // namespace fathom::kernels::cuda::sm90
