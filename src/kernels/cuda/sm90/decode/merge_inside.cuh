#pragma once
// Merging without a second kernel: all blocks of the grid run at the same time, meet when every
// partial result is written, and share the rows.
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/sm90/decode/merge.cuh"

namespace fathom::kernels::cuda::sm90 {

// The first kWarps warps of every block. kBarrier: a named barrier of theirs. scratch: shared
// memory, [kWarps][64] f32.
template <int kDimV, int kRows, int kWarps, int kBarrier>
__device__ __forceinline__ void MergeInside(const DecodeParams& params, uint32_t scratch) {
  constexpr int kColumns = 2;
  constexpr int kBatch = 32;
  using Unit = MergeUnit<kDimV, kRows, kColumns>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const auto sync = [] { ptx::BarrierSync(kBarrier, kWarps * 32); };
  sync();
  if (threadIdx.x == 0) ptx::MeetGrid(params.meeting);
  sync();

  const int units = params.num_sequences * params.max_query_tokens * params.num_kv_heads *
                    params.group * Unit::kSlices;
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  int ways = 1;  // warps that share the slots of a unit
  while (ways < kWarps && units <= warps / (ways * 2)) ways *= 2;
  const int block_units = kWarps / ways;
  for (int first = static_cast<int>(blockIdx.x) * block_units; first < units;
       first += static_cast<int>(gridDim.x) * block_units) {
    const int way = warp % ways;
    Unit unit;
    const bool live = first + warp / ways < units && unit.Find(params, first + warp / ways, lane);
    float sum[kColumns] = {};
    RowState state;
    if (live) {
      const int count = unit.partials.count;
      const int end = (way + 1) * count / ways;
      int at = way * count / ways;
      do {  // a trip to L2 each
        const int next = at + kBatch < end ? at + kBatch : end;
        state = MergeSlots<kBatch>(unit.partials, at, next, lane, sum);
        at = next;
      } while (at < end);
    }
    if (ways > 1) {
      const uint32_t mine = scratch + (warp * 32 + lane) * 8;
      ptx::StoreShared(mine, sum[0]);
      ptx::StoreShared(mine + 4, sum[1]);
      sync();
      if (way == 0) {
        for (int w = 1; w < ways; ++w) {
          const float2 other = ptx::LoadSharedFloat2(mine + w * 32 * 8);
          sum[0] += other.x;
          sum[1] += other.y;
        }
      }
      sync();
    }
    if (live && way == 0) unit.Write(params, state, sum);
  }
}

}  // namespace fathom::kernels::cuda::sm90
