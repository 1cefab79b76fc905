#pragma once
// Merging the partial results of one row: out = sum_i w_i O_i / sum_i w_i l_i, w_i = 2^(m_i - M),
// M = max m_i, summed in slot order whoever computed the slots.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::sm90 {

struct RowState {
  float max_log2 = 0;  // 0 when every key was masked
  float sum = 0;
};

__device__ __forceinline__ float LogSumExp(const RowState& state) {
  constexpr float kLn2 = 0.6931471805599453f;
  return state.sum == 0.f ? -INFINITY : (state.max_log2 + log2f(state.sum)) * kLn2;
}

struct RowPartials {
  const float* out = nullptr;  // [count][out_stride], this lane's first column
  const float2* ml = nullptr;  // [count][ml_stride]
  int32_t out_stride = 0;
  int32_t ml_stride = 0;
  int count = 0;
};

template <int kColumns>
__device__ __forceinline__ void LoadColumns(const float* from, float (&to)[kColumns]) {
  static_assert(kColumns == 2 || kColumns == 4);
  if constexpr (kColumns == 4) {
    const float4 v = ptx::LoadL2(reinterpret_cast<const float4*>(from));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    const float2 v = ptx::LoadL2(reinterpret_cast<const float2*>(from));
    to[0] = v.x, to[1] = v.y;
  }
}

// Called by a whole warp. Adds slots [begin, end) of its 32 * kColumns columns to sum; returns the
// row's state over all slots. What the first slots need is asked for before anything is waited for:
// one trip to L2 when the warp has few.
template <int kBatch, int kColumns>
__device__ __forceinline__ RowState MergeSlots(const RowPartials& row, int begin, int end, int lane,
                                               float (&sum)[kColumns]) {
  float first[kBatch][kColumns] = {};
  const float* out = row.out + int64_t{begin} * row.out_stride;
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (begin + i < end) LoadColumns(out, first[i]);
    out += row.out_stride;
  }
  const float mine = lane < kBatch && begin + lane < end
                         ? ptx::LoadL2(row.ml + int64_t{begin + lane} * row.ml_stride).x
                         : -INFINITY;
  // Lane i keeps the state of slots i, i + 32, ...
  RowState state{-INFINITY, 0};
  for (int i = lane; i < row.count; i += 32) {
    const float2 ml = ptx::LoadL2(row.ml + int64_t{i} * row.ml_stride);
    const float peak = fmaxf(state.max_log2, ml.x);
    const float base = peak == -INFINITY ? 0.f : peak;
    state.sum = state.sum * ptx::Exp2(state.max_log2 - base) + ml.y * ptx::Exp2(ml.x - base);
    state.max_log2 = peak;
  }
  float peak = state.max_log2;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
  }
  const float base = peak == -INFINITY ? 0.f : peak;
  state.sum *= ptx::Exp2(state.max_log2 - base);
  state.max_log2 = base;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    state.sum += __shfl_xor_sync(~0u, state.sum, offset);
  }

  const float weight = ptx::Exp2(mine - base);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const float w = __shfl_sync(~0u, weight, i);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] += w * first[i][c];
  }
#pragma unroll 4
  for (int i = begin + kBatch; i < end; ++i) {
    const float w = ptx::Exp2(ptx::LoadL2(row.ml + int64_t{i} * row.ml_stride).x - base);
    float next[kColumns];
    LoadColumns(row.out + int64_t{i} * row.out_stride, next);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] += w * next[c];
  }
  return state;
}

// What one warp sums: 32 * kColumns columns of a query row.
template <int kDimV, int kRows, int kColumns>
struct MergeUnit {
  static constexpr int kSlices = kDimV / (32 * kColumns);

  RowPartials partials;
  int64_t at = 0;  // query token of the batch
  int head = 0;
  int column = 0;  // of this lane

  // False: there is no such row, or it was written directly.
  __device__ __forceinline__ bool Find(const DecodeParams& params, int unit, int lane) {
    // Heads of a sequence, or of a list at most.
    const bool lists = params.lists != nullptr;
    const int heads = (lists ? 1 : params.num_kv_heads) * params.group;
    column = unit % kSlices * 32 * kColumns + lane * kColumns;
    head = unit / kSlices % heads;
    const int row = unit / kSlices / heads;
    const int index = row / params.max_query_tokens;
    const int token = row % params.max_query_tokens;
    if (index >= DecodeLineSize(params)) return false;
    int sequence = index;
    int r = token * params.group + head % params.group;
    int group = head / params.group * params.row_tiles;
    if (lists) {
      const DecodeList list = params.lists[index];
      if (head >= list.num_heads) return false;
      sequence = list.sequence;
      r = token * list.num_heads + head;
      head += list.first_head;
    }
    const DecodeMerge merge = params.merges[index];
    const int begin = params.query_starts[sequence];
    if (merge.count < 2 || token >= params.query_starts[sequence + 1] - begin) return false;
    at = begin + token;

    const int groups = DecodeGroups(params);
    group += r / kRows;
    const int64_t base = (int64_t{merge.slot} * groups + group) * kRows + r % kRows;
    partials = {params.partial_out + base * kDimV + column,
                reinterpret_cast<const float2*>(params.partial_ml) + base, groups * kRows * kDimV,
                groups * kRows, merge.count};
    return true;
  }

  __device__ __forceinline__ void Write(const DecodeParams& params, const RowState& state,
                                        const float (&sum)[kColumns]) const {
    const float scale = state.sum == 0.f ? 0.f : 1.f / state.sum;
    auto* out = reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(params.out) +
                                            at * params.out_token_stride +
                                            head * params.out_head_stride + column);
#pragma unroll
    for (int i = 0; i < kColumns; i += 2) {
      const float low = sum[i] * scale;
      const float high = sum[i + 1] * scale;
      out[i / 2] = params.float16 ? ptx::PackF16(low, high) : ptx::PackBf16(low, high);
    }
    if (params.lse != nullptr && column == 0) {
      params.lse[at * (params.num_kv_heads * params.group) + head] = LogSumExp(state);
    }
  }
};

// A unit is a (query token, head, 32 * kColumns columns): one warp's work, or with many slots a
// block's, whose kWarps warps sum a stretch of them each. kArchitecture tells the instantiations of
// libraries for different GPUs apart.
template <int kDimV, int kRows, int kWarps, bool kBlockPerUnit, int kArchitecture>
__global__ __launch_bounds__(kWarps * 32, 4) void DecodeMergeKernel(
    const __grid_constant__ DecodeParams params) {
  constexpr int kColumns = kBlockPerUnit || kDimV == 64 ? 2 : 4;
  __shared__ float sums[kBlockPerUnit ? kWarps : 1][32 * kColumns];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  MergeUnit<kDimV, kRows, kColumns> unit;
  if (!unit.Find(params,
                 kBlockPerUnit ? static_cast<int>(blockIdx.x)
                               : static_cast<int>(blockIdx.x) * kWarps + warp,
                 lane)) {
    return;
  }
  const int count = unit.partials.count;
  // This kernel starts while the decode kernel runs. A small one rehearses, on whatever its first
  // slot holds, so that its code and address translations are cached when the results come.
#pragma unroll 1
  for (int pass = static_cast<int>(gridDim.x) <= kMergeRehearsalBlocks ? 0 : 1; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) ptx::WaitForPreviousKernel();
    RowPartials partials = unit.partials;
    if (rehearsal) partials.out_stride = partials.ml_stride = 0;
    int first = kBlockPerUnit ? warp * count / kWarps : 0;
    ptx::KeepUnknown(first);  // addresses are not worth registers across the wait
    float sum[kColumns] = {};
    RowState state;
    if constexpr (kBlockPerUnit) {
      constexpr int kBatch = kDimV == 512 ? 16 : 8;
      state = MergeSlots<kBatch>(partials, first, (warp + 1) * count / kWarps, lane, sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sums[warp][lane * kColumns + i] = sum[i];
      __syncthreads();
      if (warp == 0) {
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) sum[i] += sums[w][lane * kColumns + i];
        }
      }
      __syncthreads();
    } else {
      state = MergeSlots<4>(partials, first, count, lane, sum);
    }
    if (rehearsal || (kBlockPerUnit && warp != 0)) continue;
    unit.Write(params, state, sum);
  }
}

}  // namespace fathom::kernels::cuda::sm90
