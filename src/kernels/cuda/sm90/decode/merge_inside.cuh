#pragma once
// Merging without a second kernel. All blocks of the grid run at the same time; when its part is
// done a block waits for those that share a sequence with it, and each merges as many of that
// sequence's rows.
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/sm90/decode/merge.cuh"

namespace fathom::kernels::cuda::sm90 {

// For the first kWarps warps of a block, kBarrier being a named barrier of theirs. kColumns: a
// lane's, of what a warp merges at a time.
template <int kDimV, int kRows, int kColumns, int kWarps, int kBarrier>
class MergeInside {
 public:
  // pending: kPendingMergeBytes of shared memory that begin with zero. A part has at most two
  // results to merge, of its first and its last item.
  __device__ __forceinline__ MergeInside(const DecodeParams& params, uint32_t pending, int row_tile)
      : params_(params),
        pending_(pending),
        row_tile_(row_tile),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x / 32)) {}

  // What will be read of a sequence whose keys are about to be.
  __device__ __forceinline__ void Prefetch(int sequence) const {
    if (threadIdx.x != 0) return;
    ptx::PrefetchL2(params_.merges + sequence);
    ptx::PrefetchL2(Word(sequence));
  }

  // The partial result in `slot` has been written. The queries are those of the sequence.
  __device__ __forceinline__ void Publish(int sequence, int slot, int query_begin,
                                          int query_tokens) const {
    DecodeMerge merge;
    if (threadIdx.x == 0) merge = params_.merges[sequence];
    Sync();
    if (threadIdx.x != 0) return;
    const int rank = slot - merge.slot;
    const uint32_t ticket = ptx::Arrive(Word(sequence), rank == 0, merge.count);
    const int count = ptx::LoadSharedInt(pending_);
    const uint32_t entry = Entry(count);
    ptx::StoreShared(entry, make_uint4(sequence, ticket, merge.slot, merge.count));
    ptx::StoreShared(entry + 16, make_uint4(rank, query_begin, query_tokens, 0));
    ptx::StoreShared(pending_, static_cast<uint32_t>(count + 1));
  }

  // Once, after the last item. scratch: shared memory, [kWarps][32 * kColumns + 2] f32.
  __device__ __forceinline__ void Run(uint32_t scratch) const {
    Sync();
    const int count = ptx::LoadSharedInt(pending_);
    for (int i = 0; i < count; ++i) {
      const uint4 item = ptx::LoadSharedQuad(Entry(i));
      const Share share = MakeShare({static_cast<int>(item.z), static_cast<int>(item.w)},
                                    ptx::LoadSharedQuad(Entry(i) + 16));
      if (threadIdx.x == 0) ptx::WaitForArrivals(Word(static_cast<int>(item.x)), item.y);
      Sync();
      if (share.merge.count <= kFew) {
        MergeFew(share);
      } else {
        MergeMany(share, scratch);
      }
    }
  }

 private:
  static constexpr PartialFormat kFormat = kPartialFormat<kDimV, kRows, 90>;
  using Unit = MergeUnit<kDimV, kRows, kColumns, kFormat>;  // a row's columns of one warp
  // Values a lane asks for at a time. With 128 units (64 rows of two, 16 rows of eight) a warp's
  // share is about 16, however many blocks there are.
  static constexpr int kFew = 16;
  static constexpr int kBatch = 18;

  // Units [begin, end) of a sequence's row tile.
  struct Share {
    DecodeMerge merge;
    int query_begin;
    int begin;
    int end;
  };

  __device__ __forceinline__ void Sync() const { ptx::BarrierSync(kBarrier, kWarps * 32); }
  // Of a result: sequence, ticket, its first slot, how many; rank, first query, queries.
  __device__ __forceinline__ uint32_t Entry(int i) const {
    static_assert(kPendingMergeBytes == 16 + 2 * 32);
    return pending_ + 16 + i * 32;
  }
  __device__ __forceinline__ uint32_t* Word(int sequence) const {
    return params_.arrivals + sequence * params_.row_tiles + row_tile_;
  }

  // mine: rank, first query, queries.
  __device__ __forceinline__ Share MakeShare(const DecodeMerge& merge, const uint4& mine) const {
    Share share;
    share.merge = merge;
    share.query_begin = static_cast<int>(mine.y);
    const int left = static_cast<int>(mine.z) * params_.group - row_tile_ * kRows;
    const int units = (left < kRows ? left : kRows) * Unit::kSlices;
    const int rank = static_cast<int>(mine.x);
    share.begin = rank * units / share.merge.count;
    share.end = (rank + 1) * units / share.merge.count;
    return share;
  }

  __device__ __forceinline__ Unit UnitAt(const Share& share, int index) const {
    Unit unit;
    unit.Place(params_, share.query_begin, share.merge, row_tile_ * kRows + index / Unit::kSlices,
               index % Unit::kSlices, lane_);
    return unit;
  }

  // Several units at once: all their slots are asked for together.
  __device__ __forceinline__ void MergeFew(const Share& share) const {
    constexpr int kUnitBytes = 32 * kColumns * (kFormat == PartialFormat::kFloat32 ? 4 : 2);
    const int count = share.merge.count;
    const int at_once = kFew / count;
    const int position = lane_ % count;
    for (int first = share.begin + warp_ * at_once; first < share.end; first += kWarps * at_once) {
      const int left = share.end - first;
      const int loads = (left < at_once ? left : at_once) * count;
      Unit unit = UnitAt(share, first);
      SlotColumns<kFormat, kColumns> values[kFew];
      const uint8_t* slot = unit.partials.out;
      int next = 0;
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i >= loads) break;
        values[i].Load(slot);
        slot += unit.partials.out_stride;
        if (++next == count) {
          next = 0;
          slot += kUnitBytes - int64_t{count} * unit.partials.out_stride;
        }
      }
      // Lane i has slot i % count of unit i / count.
      const bool live = lane_ < loads;
      const Unit mine = UnitAt(share, live ? first + lane_ / count : first);
      const float2 ml = live ? ptx::LoadL2(mine.partials.ml + position * mine.partials.ml_stride)
                             : make_float2(-INFINITY, 0);
      const int last = lane_ - position + count - 1;  // of its unit
      RowState state;
      state.max_log2 = __shfl_sync(
          ~0u, OfThoseBefore(ml.x, position, [](float a, float b) { return fmaxf(a, b); }), last);
      float weight = ptx::Exp2(ml.x - (state.max_log2 == -INFINITY ? 0.f : state.max_log2));
      state.sum = __shfl_sync(
          ~0u, OfThoseBefore(ml.y * weight, position, [](float a, float b) { return a + b; }),
          last);
      weight = state.sum == 0.f ? 0.f : weight / state.sum;
      if (live && position == 0 && mine.column < 32 * kColumns) mine.WriteLse(params_, state);

      float sum[kColumns] = {};
      next = 0;
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i >= loads) break;
        values[i].AddTo(sum, __shfl_sync(~0u, weight, i));
        if (++next == count) {
          next = 0;
          unit.WriteColumns(params_, 1.f, sum);
          unit.Advance(params_);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sum[c] = 0;
        }
      }
    }
  }

  // What join makes of this lane's value and those of the `position` lanes before it.
  template <class Join>
  __device__ __forceinline__ float OfThoseBefore(float value, int position,
                                                 const Join& join) const {
#pragma unroll
    for (int offset = 1; offset < kFew; offset *= 2) {
      const float other = __shfl_up_sync(~0u, value, offset);
      if (position >= offset) value = join(other, value);
    }
    return value;
  }

  // A unit for each warp, or for several that share its slots.
  __device__ __forceinline__ void MergeMany(const Share& share, uint32_t scratch) const {
    constexpr uint32_t kSumBytes = 32 * kColumns * 4;
    constexpr uint32_t kWarpBytes = kSumBytes + 8;  // sums, state
    const int count = share.merge.count;
    int ways = 1;
    while (ways < kWarps && (share.end - share.begin) * ways * 2 <= kWarps) ways *= 2;
    const int way = warp_ % ways;
    for (int first = share.begin; first < share.end; first += kWarps / ways) {
      const int index = first + warp_ / ways;
      const bool live = index < share.end;
      const Unit unit = UnitAt(share, live ? index : first);
      float sum[kColumns] = {};
      RowState state{-INFINITY, 0};
      if (live) {
        state = MergeSlots<kBatch, 2, kFormat>(unit.partials, way * count / ways,
                                               (way + 1) * count / ways, lane_, sum);
      }
      if (ways > 1) {
        const uint32_t mine = scratch + warp_ * kWarpBytes;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) ptx::StoreShared(mine + c * 128 + lane_ * 4, sum[c]);
        if (lane_ == 0) {
          ptx::StoreShared(mine + kSumBytes, state.max_log2);
          ptx::StoreShared(mine + kSumBytes + 4, state.sum);
        }
        Sync();
        if (way == 0) {
          RunningSum<kColumns> total;
          for (int w = 0; w < ways; ++w) {
            const uint32_t other = mine + w * kWarpBytes;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              sum[c] = ptx::LoadSharedFloat(other + c * 128 + lane_ * 4);
            }
            total.Add({ptx::LoadSharedFloat(other + kSumBytes),
                       ptx::LoadSharedFloat(other + kSumBytes + 4)},
                      sum);
          }
          state = total.state;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sum[c] = total.sum[c];
        }
        Sync();
      }
      if (live && way == 0) unit.Write(params_, state, sum);
    }
  }

  const DecodeParams& params_;
  uint32_t pending_;
  int row_tile_;
  int lane_;
  int warp_;
};

}  // namespace fathom::kernels::cuda::sm90
