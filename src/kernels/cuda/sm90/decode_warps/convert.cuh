#pragma once
// Quantised cache elements, four bytes a register, to pairs of float16. Exact: both codes have less
// mantissa and a smaller range. And queries, to what is multiplied by them.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/element_type.cuh"

namespace fathom::kernels::cuda::sm90 {

// int8: `x` has a code in the low byte of each half. With its sign bit turned over a code is 128
// more, which behind 1024 is the mantissa.
__device__ __forceinline__ uint32_t Int8ToF16x2(uint32_t x) {
  constexpr uint32_t kMinus1152 = 0xe480e480;
  return ptx::AddF16x2((x & 0x00ff00ff) ^ 0x64806480, kMinus1152);
}

// Bytes 0, 2 and bytes 1, 3.
template <CacheCode kCode>
__device__ __forceinline__ void ConvertValues(uint32_t raw, uint32_t& first, uint32_t& second) {
  if constexpr (kCode == CacheCode::kInt8) {
    first = Int8ToF16x2(raw);
    second = Int8ToF16x2(raw >> 8);
  } else {
    ptx::E4m3ToF16(__byte_perm(raw, 0, 0x3120), first, second);
  }
}

// Query rows as factors of quantised keys: times the power of two that puts the row's largest
// element in [2^14, 2^15).
//   e4m3: float16. Exact but for elements 2^28 times smaller than the largest.
//   int8: integers, 256 * a signed high byte + an unsigned low byte. Exact down to 2^-7 (float16:
//   2^-4) of the largest, below that to 2^-15 of it.
// The four lanes of a quad have a row.
template <bool kFloat16, int kCount>
__device__ __forceinline__ float QueryPeak(const uint2 (&row)[kCount]) {
  int peak = 0;  // without their signs, 16-bit floats are in the order of integers
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    for (const uint32_t pair : {row[i].x, row[i].y}) {
      peak = max(peak, max(static_cast<int>(pair & 0x7fff), static_cast<int>(pair >> 16 & 0x7fff)));
    }
  }
  peak = max(peak, __shfl_xor_sync(~0u, peak, 1));
  peak = max(peak, __shfl_xor_sync(~0u, peak, 2));
  constexpr int kInfinity =
      kFloat16 ? 0x7c00 : 0x7f80;  // NaN are above it: a caller's fmaxf drops them
  return ElementType<kFloat16>::Unpack(static_cast<uint32_t>(min(peak, kInfinity))).x;
}
// Of a row that is not finite no score may be, either, and integers would hide it.
__device__ __forceinline__ float QueryFactor(float peak) {
  if (peak == INFINITY) return NAN;
  const int exponent = 127 + 14 + 127 - static_cast<int>(__float_as_uint(peak) >> 23);
  return __uint_as_float(static_cast<uint32_t>(min(exponent, 253)) << 23);
}
template <bool kFloat16>
__device__ __forceinline__ uint32_t ScaleToF16(uint32_t pair, float factor) {
  if constexpr (kFloat16) {
    const float2 values = ptx::UnpackF16(pair);
    return ptx::PackF16(values.x * factor, values.y * factor);
  } else {
    return ptx::PackF16(ptx::LowBf16(pair) * factor, ptx::HighBf16(pair) * factor);
  }
}
// Four neighbours, to the high and the low bytes of their integers.
template <bool kFloat16>
__device__ __forceinline__ void Int8Query(uint2 four, float factor, uint32_t& high, uint32_t& low) {
  const float2 first = ElementType<kFloat16>::Unpack(four.x);
  const float2 second = ElementType<kFloat16>::Unpack(four.y);
  const float values[4] = {first.x, first.y, second.x, second.y};
  high = low = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto code = static_cast<uint32_t>(__float2int_rn(values[i] * factor));
    high |= (code >> 8 & 0xff) << (8 * i);
    low |= (code & 0xff) << (8 * i);
  }
}

}  // namespace fathom::kernels::cuda::sm90
