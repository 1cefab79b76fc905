#pragma once
// float8 e4m3 (OCP: no infinities, 448 the largest), the same on the host and the device.
#include <cstdint>
#include <cstring>

#include "kernels/cuda/host_device.h"

namespace fathom::kernels::cuda {

inline constexpr float kE4m3Max = 448.f;

// Nearest, ties to even; beyond the range the largest. NaN is not kept.
FATHOM_HOST_DEVICE inline uint8_t EncodeE4m3(float x) {
  const float magnitude = x < 0 ? -x : x;
  uint32_t bits = 0;
  memcpy(&bits, &x, 4);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  if (!(magnitude < kE4m3Max)) return sign | 0x7e;
  if (magnitude < 0.015625f) {           // below 2^-6: multiples of 2^-9
    constexpr float kRound = 8388608.f;  // 2^23: a sum keeps the nearest integer
    const float steps = magnitude * 512.f + kRound;
    uint32_t code = 0;
    memcpy(&code, &steps, 4);
    return static_cast<uint8_t>(sign | (code & 0xf));
  }
  bits &= 0x7fffffff;
  bits += 0x7ffff + (bits >> 20 & 1);  // to three bits of mantissa
  return static_cast<uint8_t>(sign | ((bits >> 20) - ((127 - 7) << 3)));
}

// Two at once, the first in the low byte; there is an instruction from compute capability 8.9 on.
FATHOM_HOST_DEVICE inline uint32_t EncodeE4m3Pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
#else
  return EncodeE4m3(low) | static_cast<uint32_t>(EncodeE4m3(high)) << 8;
#endif
}

FATHOM_HOST_DEVICE inline float DecodeE4m3(uint8_t code) {
  // Its exponent and mantissa in place, 2^120 too small.
  const uint32_t bits =
      static_cast<uint32_t>(code & 0x80) << 24 | static_cast<uint32_t>(code & 0x7f) << 20;
  float x = 0;
  memcpy(&x, &bits, 4);
  return x * 1.329227995784916e36f;  // 2^120
}

}  // namespace fathom::kernels::cuda
