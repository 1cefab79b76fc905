#pragma once
// Merging the partial results of one row: out = sum_i w_i O_i / sum_i w_i l_i, w_i = 2^(m_i - M),
// M = max m_i, summed in slot order whoever computed the slots.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::sm90 {

struct RowPartials {
  const float* out = nullptr;  // [count][out_stride], this lane's first column
  const float2* ml = nullptr;  // [count][ml_stride]
  int64_t out_stride = 0;
  int64_t ml_stride = 0;
  int count = 0;
};

struct RowState {
  float max_log2 = 0;  // 0 when every key was masked
  float sum = 0;
};

// Called by a whole warp: all lanes return the same.
__device__ __forceinline__ RowState MergeWeights(const RowPartials& row, int lane) {
  float peak = -INFINITY;
  for (int i = lane; i < row.count; i += 32) {
    peak = fmaxf(peak, __ldcg(row.ml + i * row.ml_stride).x);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
  }
  RowState state;
  state.max_log2 = peak == -INFINITY ? 0.f : peak;
  for (int i = lane; i < row.count; i += 32) {
    const float2 ml = __ldcg(row.ml + i * row.ml_stride);
    state.sum += ptx::Exp2(ml.x - state.max_log2) * ml.y;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    state.sum += __shfl_xor_sync(~0u, state.sum, offset);
  }
  return state;
}

// Adds slots [begin, end) of a warp's 32 * kColumns columns to sum.
template <int kColumns>
__device__ __forceinline__ void MergeColumns(const RowPartials& row, float max_log2, int begin,
                                             int end, int lane, float (&sum)[kColumns]) {
  static_assert(kColumns == 2 || kColumns == 4);
  for (int base = begin; base < end; base += 32) {
    const float mine = base + lane < end
                           ? ptx::Exp2(__ldcg(row.ml + (base + lane) * row.ml_stride).x - max_log2)
                           : 0.f;
    const int count = end - base < 32 ? end - base : 32;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(~0u, mine, i);
      const float* out = row.out + (base + i) * row.out_stride;
      if constexpr (kColumns == 4) {
        const float4 o = __ldcg(reinterpret_cast<const float4*>(out));
        sum[0] += weight * o.x;
        sum[1] += weight * o.y;
        sum[2] += weight * o.z;
        sum[3] += weight * o.w;
      } else {
        const float2 o = __ldcg(reinterpret_cast<const float2*>(out));
        sum[0] += weight * o.x;
        sum[1] += weight * o.y;
      }
    }
  }
}

__device__ __forceinline__ float LogSumExp(const RowState& state) {
  constexpr float kLn2 = 0.6931471805599453f;
  return state.sum == 0.f ? -INFINITY : (state.max_log2 + log2f(state.sum)) * kLn2;
}

template <int kColumns>
__device__ __forceinline__ void StoreRow(uint32_t* out, const float (&sum)[kColumns],
                                         const RowState& state) {
  const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
#pragma unroll
  for (int i = 0; i < kColumns; i += 2) {
    out[i / 2] = ptx::PackBf16(sum[i] * scale, sum[i + 1] * scale);
  }
}

}  // namespace fathom::kernels::cuda::sm90
