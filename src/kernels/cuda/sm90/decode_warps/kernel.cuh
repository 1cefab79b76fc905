#pragma once
// Decode attention with free-running warps (GQA, bf16 or quantised caches).
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

template <class Config>
__device__ __forceinline__ void ProduceWarpsTiles(const DecodeParams& params, const WarpsMaps& maps,
                                                  const WarpsShared<Config>& shared, int kv_head,
                                                  const DecodePart& part, int32_t ids) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t policy = params.keep_in_l2 ? ptx::kL2EvictNormal : ptx::kL2EvictFirst;
  RingPosition<Config::kSlots> position;
  TileWalk walk(params, lane);
  walk.Run(part, ids, [&](const int32_t(&pages)[4], int token, int tile) {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      if (lane == 0) {
        const uint32_t full = shared.Full(position.slot);
        ptx::MbarrierWait(shared.Empty(position.slot), position.phase ^ 1);
        if (params.tile_lists != nullptr) {
          ptx::StoreShared(shared.Tile(position.slot), static_cast<uint32_t>(tile));
        }
        ptx::MbarrierExpectBytes(full,
                                 Config::kSlotBytes + (Config::kQuantised ? Config::kTile * 4 : 0));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i >= walk.boxes()) continue;
          const int row = i * walk.box_tokens();
#pragma unroll
          for (int block = 0; block < Config::kBlocks; ++block) {
            ptx::TmaLoad4(
                shared.Slot(position.slot) + (block * Config::kTile + row) * Config::kBlockRowBytes,
                &maps.plane[plane], full, block * Config::kBlockRowBytes / Config::kElementBytes,
                token, kv_head, pages[i], policy);
          }
          if constexpr (Config::kQuantised) {
            ptx::TmaLoad4(shared.Scales(position.slot) + i * max(walk.box_tokens() * 4, 128),
                          &maps.scales[plane], full, token, 0, kv_head, pages[i], policy);
          }
        }
      }
      position.Next();
    }
    __syncwarp();
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeWarpsKernel(
    const __grid_constant__ DecodeParams params, const __grid_constant__ WarpsMaps maps) {
  const WarpsShared<Config> shared(ptx::DynamicShared());
  const int groups = params.num_kv_heads * params.row_tiles;
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
