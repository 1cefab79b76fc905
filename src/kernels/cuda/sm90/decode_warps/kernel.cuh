#pragma once
// Decode attention with free-running warps (GQA, bf16, float16 or quantised caches).
//
// A producer warp streams tiles of 64 keys, then 64 values, through a ring by TMA. Each of four
// consumer warps takes 16 keys of every tile: S' [16 keys, rows] = K Q', its own running maximum,
// O' [dim, rows] += V' P', with mma.sync. Queries stay in registers, probabilities pass from one
// product to the other by a transposition of registers, and no warp waits for another until the
// item ends and the four states are merged. Quantised elements are converted in registers on their
// way from shared memory, without their scales: a key's scale multiplies its scores, a value's its
// probabilities.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/tile_walk.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_warps/consumer.cuh"

namespace fathom::kernels::cuda::sm90 {

struct WarpsMaps {
  CUtensorMap plane[2];   // keys, values
  CUtensorMap scales[2];  // quantised
};

// One warp. A lane has one box of a slot: lane % 4 says which tokens of the tile, lane / 4 which
// columns, or, behind those, the scales. So all boxes of a slot take as many instructions as one,
// but for the copy itself: a single lane that made them one after the other was slower than memory.
template <class Config>
__device__ __forceinline__ void ProduceWarpsTiles(const DecodeParams& params, const WarpsMaps& maps,
                                                  const WarpsShared<Config>& shared, int kv_head,
                                                  const DecodePart& part, int32_t ids) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int box = lane % 4;
  const int column = lane / 4;
  const uint64_t policy = CachePolicy(params, part, 2 * Config::kSlotBytes);
  RingPosition<Config::kSlots> position;
  TileWalk walk(params, lane, box, kv_head);
  const bool scales = column == Config::kBlocks;
  const bool copies = box < walk.boxes() && column < Config::kBlocks + (Config::kQuantised ? 1 : 0);
  const CUtensorMap* map = scales ? maps.scales : maps.plane;
  const uint32_t first = scales
                             ? shared.Scales(0) + box * max(walk.box_tokens() * 4, 128)
                             : shared.Slot(0) + (column * Config::kTile + box * walk.box_tokens()) *
                                                    Config::kBlockRowBytes;
  const int stride = scales ? Config::kScaleBytes : Config::kSlotBytes;
  const int element = column * Config::kBlockRowBytes / Config::kElementBytes;
  walk.Run(part, ids, [&](int32_t page, int token, const VisitedTile& tile) {
    const int c0 = scales ? token : element;
    const int c1 = scales ? 0 : token;
#pragma unroll 1
    for (int plane = 0; plane < 2; ++plane) {
      const uint32_t full = shared.Full(position.slot);
      if (lane == 0) {
        ptx::MbarrierWait(shared.Empty(position.slot), position.phase ^ 1);
        if (params.lists != nullptr) {
          ptx::StoreShared(
              shared.Tile(position.slot),
              make_uint2(static_cast<uint32_t>(tile.tile), static_cast<uint32_t>(tile.mask)));
        }
        ptx::MbarrierExpectBytes(full,
                                 Config::kSlotBytes + (Config::kQuantised ? Config::kTile * 4 : 0));
      }
      __syncwarp();
      if (copies) {
        ptx::TmaLoad4(first + position.slot * stride, map + plane, full, c0, c1, tile.kv_head, page,
                      policy);
      }
      position.Next();
    }
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeWarpsKernel(
    const __grid_constant__ DecodeParams params, const __grid_constant__ WarpsMaps maps) {
  const WarpsShared<Config> shared(ptx::DynamicShared());
  const int groups = DecodeGroups(params);
  const int part_index = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int kv_head = group / params.row_tiles;
  const int row_tile = group % params.row_tiles;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);

  ptx::WaitForPreviousKernel();
  ptx::LaunchDependents();  // the merge kernel gets ready meanwhile
  if (warp == 0) {
    shared.Initialise(lane);
    if (lane < 2) ptx::TmaPrefetchMap(&maps.plane[lane]);
    if (Config::kQuantised && lane < 2) ptx::TmaPrefetchMap(&maps.scales[lane]);
  }
  // Behind the fence in Initialise, which would wait for them.
  const DecodePart part = params.parts[part_index];
  const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
  __syncthreads();

  if (warp == Config::kWarps) {
    ProduceWarpsTiles<Config>(params, maps, shared, kv_head, part, ids);
    WriteEmpty<Config>(params, part_index, kv_head, row_tile);
  } else {
    RingSource<Config> source(shared);
    WarpsConsumer<Config, RingSource<Config>>(params, shared, source, kv_head, row_tile)
        .Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
