#pragma once
// Merging the partial results of one row: out = sum_i w_i O_i / sum_i w_i l_i, w_i = 2^(m_i - M),
// M = max m_i, summed in slot order whoever computed the slots.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/sm90/decode/config.h"

namespace fathom::kernels::cuda::sm90 {

struct RowState {
  float max_log2 = 0;  // 0 when every key was masked
  float sum = 0;
};

__device__ __forceinline__ float LogSumExp(const RowState& state) {
  constexpr float kLn2 = 0.6931471805599453f;
  return state.sum == 0.f ? -INFINITY : (state.max_log2 + log2f(state.sum)) * kLn2;
}

// A lane of an accumulator has columns 2 p, 2 p + 1 of eight and of the next eight: they lie
// together. Column of the pair at an even position, and the reverse.
__device__ __forceinline__ int PairedColumn(int position) {
  return (position & ~15) | (position & 2) << 2 | (position & 12) >> 1;
}
__device__ __forceinline__ int PairedPosition(int column) {
  return (column & ~15) | (column & 8) >> 2 | (column & 6) << 1;
}

// The power of two for a row whose largest element is `largest`, as what elements are multiplied by
// and as what is added to the maximum. Below 2^-46 it stays: the sum must not overflow. A row whose
// sums went beyond float32 is left as it is. (An infinite latent makes no infinity here: as a key
// it makes the score infinite or NaN, and its weight times itself NaN.)
struct PartialScale {
  float factor = 1;
  float shift = 0;

  __device__ __forceinline__ explicit PartialScale(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);
    if (!(largest > 0) || exponent == 255) return;
    const int steps = (exponent < 81 ? 81 : exponent) - 127 - 14;
    factor = __uint_as_float(static_cast<uint32_t>(127 - steps) << 23);
    shift = static_cast<float>(steps);
  }
  __device__ __forceinline__ float2 State(float max_log2, float sum) const {
    return make_float2(max_log2 + shift, sum * factor);
  }
};

struct RowPartials {
  const uint8_t* out = nullptr;  // [count], out_stride bytes apart; this lane's first column
  const float2* ml = nullptr;    // [count][ml_stride]
  int32_t out_stride = 0;
  int32_t ml_stride = 0;
  int count = 0;
};

// A lane's columns of a slot, as they lie in memory.
template <PartialFormat kFormat, int kColumns>
class SlotColumns {
 public:
  __device__ __forceinline__ void Load(const uint8_t* from) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4);
    if constexpr (kWords == 4) {
      const float4 v = ptx::LoadL2(reinterpret_cast<const float4*>(from));
      words_[0] = v.x, words_[1] = v.y, words_[2] = v.z, words_[3] = v.w;
    } else if constexpr (kWords == 2) {
      const float2 v = ptx::LoadL2(reinterpret_cast<const float2*>(from));
      words_[0] = v.x, words_[1] = v.y;
    } else {
      words_[0] = ptx::LoadL2(reinterpret_cast<const float*>(from));
    }
  }
  __device__ __forceinline__ void AddTo(float (&sum)[kColumns], float weight) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kFormat == PartialFormat::kFloat32) {
        sum[i] += weight * words_[i];
      } else {
        const float2 pair = ptx::UnpackF16(__float_as_uint(words_[i]));
        sum[2 * i] += weight * pair.x;
        sum[2 * i + 1] += weight * pair.y;
      }
    }
  }

 private:
  static constexpr int kWords = kFormat == PartialFormat::kFloat32 ? kColumns : kColumns / 2;
  float words_[kWords] = {};
};

// Called by a whole warp: sums slots [begin, end) of its 32 * kColumns columns, in slot order, and
// returns their state (-inf when every key was masked); `sum` is relative to its maximum. A trip to
// L2 costs as much as a step of the decode kernel, so everything is asked for ahead: the states of
// 32 * kStates slots at once, and always the values of kBatch slots.
template <int kBatch, int kStates, PartialFormat kFormat, int kColumns>
__device__ __forceinline__ RowState MergeSlots(const RowPartials& row, int begin, int end, int lane,
                                               float (&sum)[kColumns]) {
  static_assert(kBatch <= 32);
  SlotColumns<kFormat, kColumns> ahead[kBatch];
  const uint8_t* out = row.out + int64_t{begin} * row.out_stride;
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (begin + i < end) ahead[i].Load(out);
    out += row.out_stride;
  }
  // Lane i keeps the state of slots begin + i, begin + i + 32, ...
  RowState state{-INFINITY, 0};
  float maximum = -INFINITY;  // of slot begin + lane
#pragma unroll 1
  for (int first = begin + lane; first - lane < end; first += 32 * kStates) {
    float2 ml[kStates];
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const int slot = first + 32 * i;
      ml[i] = slot < end ? ptx::LoadL2(row.ml + int64_t{slot} * row.ml_stride)
                         : make_float2(-INFINITY, 0);
    }
    if (first == begin + lane) maximum = ml[0].x;
    float peak = state.max_log2;
#pragma unroll
    for (int i = 0; i < kStates; ++i) peak = fmaxf(peak, ml[i].x);
    const float base = peak == -INFINITY ? 0.f : peak;
    state.sum *= ptx::Exp2(state.max_log2 - base);
#pragma unroll
    for (int i = 0; i < kStates; ++i) state.sum += ml[i].y * ptx::Exp2(ml[i].x - base);
    state.max_log2 = peak;
  }
  const auto maximum_of = [&](int slot) {
    return lane < kBatch && slot < end ? ptx::LoadL2(row.ml + int64_t{slot} * row.ml_stride).x
                                       : -INFINITY;
  };
  float peak = state.max_log2;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
  }
  const float base = peak == -INFINITY ? 0.f : peak;
  state.sum *= ptx::Exp2(state.max_log2 - base);
  state.max_log2 = peak;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    state.sum += __shfl_xor_sync(~0u, state.sum, offset);
  }

#pragma unroll 1
  for (int next = begin + kBatch;; next += kBatch) {
    const float weight = ptx::Exp2(maximum - base);
    const bool last = next >= end;
    if (!last) maximum = maximum_of(next + lane);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      ahead[i].AddTo(sum, __shfl_sync(~0u, weight, i));
      if (!last && next + i < end) ahead[i].Load(out);
      out += row.out_stride;
    }
    if (last) break;
  }
  return state;
}

// Sums of the same columns over stretches of keys, added one after the other.
template <int kColumns>
struct RunningSum {
  RowState state{-INFINITY, 0};
  float sum[kColumns] = {};

  __device__ __forceinline__ void Add(const RowState& next, const float (&values)[kColumns]) {
    const float peak = fmaxf(state.max_log2, next.max_log2);
    const float base = peak == -INFINITY ? 0.f : peak;
    const float before = ptx::Exp2(state.max_log2 - base);
    const float now = ptx::Exp2(next.max_log2 - base);
    state = {peak, state.sum * before + next.sum * now};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] = sum[c] * before + values[c] * now;
  }
};

// What one warp sums: 32 * kColumns columns of a query row.
template <int kDimV, int kRows, int kColumns, PartialFormat kFormat>
struct MergeUnit {
  static constexpr int kSlices = kDimV / (32 * kColumns);
  static constexpr bool kPaired = kFormat == PartialFormat::kPairedFloat16;

  RowPartials partials;
  int64_t at = 0;  // query token of the batch
  int head = 0;
  int column = 0;  // of this lane, the first

  // Row `row` (query token x heads) of a sequence whose keys have one head, and a slice of it.
  __device__ __forceinline__ void Place(const DecodeParams& params, int query_begin,
                                        const DecodeMerge& merge, int row, int slice, int lane) {
    const int token = (row * params.group_inverse) >> kGroupInverseShift;
    at = query_begin + token;
    head = row - token * params.group;
    PointAt(params, merge, params.row_tiles, row / kRows, row % kRows,
            (slice * 32 + lane) * kColumns);
  }

  // The slice that follows, maybe of the next row.
  __device__ __forceinline__ void Advance(const DecodeParams& params) {
    column += 32 * kColumns;
    if (column < kDimV) return;
    column -= kDimV;
    if (++head < params.group) return;
    head = 0;
    ++at;
  }

  // False: there is no such row, or it was written directly.
  __device__ __forceinline__ bool Find(const DecodeParams& params, int unit, int lane) {
    // Heads of a sequence, or of a list at most.
    const bool lists = params.lists != nullptr;
    const int heads = (lists ? 1 : params.num_kv_heads) * params.group;
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
    PointAt(params, merge, groups, group, r % kRows, (unit % kSlices * 32 + lane) * kColumns);
    return true;
  }

  __device__ __forceinline__ void Write(const DecodeParams& params, const RowState& state,
                                        const float (&sum)[kColumns]) const {
    WriteColumns(params, state.sum == 0.f ? 0.f : 1.f / state.sum, sum);
    if (column == 0) WriteLse(params, state);
  }
  __device__ __forceinline__ void WriteColumns(const DecodeParams& params, float scale,
                                               const float (&sum)[kColumns]) const {
    auto* out = static_cast<__nv_bfloat16*>(params.out) + at * params.out_token_stride +
                head * params.out_head_stride + column;
    uint32_t packed[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns; i += 2) {
      const float low = sum[i] * scale;
      const float high = sum[i + 1] * scale;
      packed[i / 2] = params.float16 ? ptx::PackF16(low, high) : ptx::PackBf16(low, high);
    }
    if constexpr (kPaired) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) *reinterpret_cast<uint32_t*>(out + i * 8) = packed[i];
    } else if constexpr (kColumns == 8) {
      *reinterpret_cast<uint4*>(out) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) reinterpret_cast<uint32_t*>(out)[i] = packed[i];
    }
  }
  __device__ __forceinline__ void WriteLse(const DecodeParams& params,
                                           const RowState& state) const {
    if (params.lse == nullptr) return;
    params.lse[at * (params.num_kv_heads * params.group) + head] = LogSumExp(state);
  }

 private:
  // Row `row` of row tile `group` of `groups` in each slot. position: of this lane's columns.
  __device__ __forceinline__ void PointAt(const DecodeParams& params, const DecodeMerge& merge,
                                          int groups, int group, int row, int position) {
    constexpr int kBytes = kFormat == PartialFormat::kFloat32 ? 4 : 2;
    static_assert(!kPaired || kColumns <= 4);
    column = kPaired ? PairedColumn(position) : position;
    const int64_t base = (int64_t{merge.slot} * groups + group) * kRows + row;
    partials = {
        static_cast<const uint8_t*>(params.partial_out) + (base * kDimV + position) * kBytes,
        reinterpret_cast<const float2*>(params.partial_ml) + base, groups * kRows * kDimV * kBytes,
        groups * kRows, merge.count};
  }
};

// A unit is a (query token, head, 32 * kColumns columns): one warp's work, or with many slots a
// block's, whose kWarps warps sum a stretch of them each. Where keys are divided into segments the
// stretches have kSegmentStretch slots in both cases, so that a row's bits do not depend on which
// it is. kArchitecture tells the instantiations of libraries for different GPUs apart.
inline constexpr int kSegmentStretch = 8;
// The kernel rehearses when it has at most so many blocks: they are there before the results are.
inline constexpr int kMergeRehearsalBlocks = 256;

template <int kDimV, int kRows, int kWarps, bool kBlockPerUnit, int kArchitecture>
__global__ __launch_bounds__(kWarps * 32, 3) void DecodeMergeKernel(
    const __grid_constant__ DecodeParams params) {
  constexpr int kColumns = kBlockPerUnit || kDimV == 64 ? 2 : 4;
  constexpr PartialFormat kFormat = kPartialFormat<kDimV, kRows, kArchitecture>;
  __shared__ float sums[kBlockPerUnit ? kWarps : 1][32 * kColumns];
  __shared__ float2 states[kBlockPerUnit ? kWarps : 1];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  MergeUnit<kDimV, kRows, kColumns, kFormat> unit;
  if (!unit.Find(params,
                 kBlockPerUnit ? static_cast<int>(blockIdx.x)
                               : static_cast<int>(blockIdx.x) * kWarps + warp,
                 lane)) {
    return;
  }
  const int count = unit.partials.count;
  const bool segments = params.split.max_segments != 0;
  // This kernel starts while the decode kernel runs. A small one rehearses, on whatever its first
  // slot holds, so that its code and address translations are cached when the results come.
#pragma unroll 1
  for (int pass = static_cast<int>(gridDim.x) <= kMergeRehearsalBlocks ? 0 : 1; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) ptx::WaitForPreviousKernel();
    RowPartials partials = unit.partials;
    if (rehearsal) partials.out_stride = partials.ml_stride = 0;
    RunningSum<kColumns> total;
    int first = 0;
    ptx::KeepUnknown(first);  // addresses are not worth registers across the wait
#pragma unroll 1
    while (first < count) {
      int begin = first;
      int end = count;
      if constexpr (kBlockPerUnit) {
        begin = segments ? first + warp * kSegmentStretch : warp * count / kWarps;
        end = segments ? begin + kSegmentStretch : (warp + 1) * count / kWarps;
      } else if (segments) {
        end = begin + kSegmentStretch;
      }
      first = segments ? first + (kBlockPerUnit ? kWarps : 1) * kSegmentStretch : count;
      if (end > count) end = count;
      // By a block: all, where an SM has a part.
      constexpr int kBatch = !kBlockPerUnit ? 4 : kDimV == 512 ? 18 : 8;
      float sum[kColumns] = {};
      const RowState state = MergeSlots<kBatch, 1, kFormat>(partials, begin, end, lane, sum);
      if constexpr (kBlockPerUnit) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sums[warp][lane * kColumns + i] = sum[i];
        if (lane == 0) states[warp] = {state.max_log2, state.sum};
        __syncthreads();
        if (warp == 0) {
#pragma unroll
          for (int w = 0; w < kWarps; ++w) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) sum[i] = sums[w][lane * kColumns + i];
            total.Add({states[w].x, states[w].y}, sum);
          }
        }
        __syncthreads();
      } else {
        total.Add(state, sum);
      }
    }
    if (rehearsal || (kBlockPerUnit && warp != 0)) continue;
    unit.Write(params, total.state, total.sum);
  }
}

}  // namespace fathom::kernels::cuda::sm90
