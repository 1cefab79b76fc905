#pragma once
// What queries, cache and output are made of, in kernels that are compiled for bf16 and for
// float16: products with float32 sums, rounding, and how large probabilities are kept.
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda {

template <bool kFloat16>
struct ElementType {
  // Two floats to a pair, the first in the low half.
  __device__ __forceinline__ static uint32_t Pack(float low, float high) {
    return kFloat16 ? ptx::PackF16(low, high) : ptx::PackBf16(low, high);
  }
  __device__ __forceinline__ static void Store(uint16_t* to, float x) {
    if constexpr (kFloat16) {
      *to = static_cast<uint16_t>(ptx::PackF16(x, 0));
    } else {
      *reinterpret_cast<__nv_bfloat16*>(to) = __float2bfloat16_rn(x);
    }
  }
  __device__ __forceinline__ static float2 Unpack(uint32_t pair) {
    if constexpr (kFloat16) {
      return ptx::UnpackF16(pair);
    } else {
      return make_float2(ptx::LowBf16(pair), ptx::HighBf16(pair));
    }
  }

  // Those of mma.sync (ptx/mma.h).
  __device__ __forceinline__ static void Multiply(float (&d)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    if constexpr (kFloat16) {
      ptx::MmaF16(d, a, b0, b1);
    } else {
      ptx::Mma(d, a, b0, b1);
    }
  }
  __device__ __forceinline__ static void MultiplyFromZero(float (&d)[4], const uint32_t (&a)[4],
                                                          uint32_t b0, uint32_t b1) {
    if constexpr (kFloat16) {
      ptx::MmaF16FromZero(d, a, b0, b1);
    } else {
      ptx::MmaFromZero(d, a, b0, b1);
    }
  }
};

// Base of a row that has not seen a key: finite, so that it can be subtracted from itself, and so
// low that the exponential of any score overflows.
inline constexpr float kNoBase = -3.402823466e38f;

// Probabilities are 2^(score - base), in log2. bf16 has the exponents of float32, so any base does.
// Float16 ends at 2^16 and keeps 11 bits down to 2^-14, then absolute steps of 2^-24: the base lies
// so far below the maximum that the largest probabilities come to 2^15. What steps and zeros lose
// of all keys' weight is then below 2^-40 a key where the base follows the maximum at once, 2^-32
// where it waits until that has grown by 2^kSlack, or where that and factors of up to 2^kFactor,
// which probabilities are multiplied by, come to 2^8.
template <bool kFloat16, int kSlack = 0, int kFactor = 0>
struct ProbabilityRange {
  // The base below the maximum when it moves, and the largest exponent before it has to.
  static constexpr float kLift = kFloat16 ? 15 - kSlack - kFactor : 0;
  static constexpr float kReach = kLift + kSlack;
  // Where sums tell instead (kSlack then only lowers kLift): the base stays while every sum of 16
  // or 32 probabilities is below this. So float16 ones fit, and bf16 ones leave the outputs and row
  // sums that are made of them far from the ends of float32.
  static constexpr float kMostSum = kFloat16 ? 65504.f : 4294967296.f;  // 2^32
};

}  // namespace fathom::kernels::cuda
