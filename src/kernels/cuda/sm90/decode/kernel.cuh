#pragma once
// Decode attention for sm_90a: a few query rows against a long paged cache.
//
// The operands of both products are swapped, so that keys fill the 64 rows of a wgmma and the few
// query rows are its N: S' [64 keys, rows] = K Q', O' [dim_v, rows] = V' P'. Nothing is padded to
// 64 queries, and the accumulators are small.
//
// A block is one or two consumer warpgroups and one producer warp. The producer streams 64-token x
// 64-element boxes through a ring in shared memory, one mbarrier pair a slot, and never waits for
// anything but a free slot, across tiles, items and sequences. MLA's values are its keys: each
// block of a latent tile is read twice and released after the second product has used it.
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/decode/consumer.cuh"
#include "kernels/cuda/sm90/decode/producer.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"

namespace fathom::kernels::cuda::sm90 {

// A named barrier: the first consumer warp has initialised the mbarriers, for the producer. Other
// consumers meet the first before they wait for keys.
inline constexpr int kBarriersReady = 4;

// kMergeInside: a kernel of its own, so that the other's code is not longer than it has to be.
template <class Config, bool kMergeInside>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeKernel(
    const __grid_constant__ DecodeParams params, const __grid_constant__ DecodeMaps maps) {
  const DecodeShared<Config> shared(ptx::DynamicShared());
  const int groups = params.num_kv_heads * params.row_tiles;
  const int part_index = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int kv_head = group / params.row_tiles;
  const int row_tile = group % params.row_tiles;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);

  ptx::WaitForPreviousKernel();
  ptx::LaunchDependents();  // what comes next gets ready meanwhile, as a merge kernel
  const bool producer = warp >= Config::kConsumerThreads / 32;
  if (producer) {
    // First of all, what all else here waits for: every access before the first keys is a miss.
    const DecodePart part = params.parts[part_index];
    const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
    ptx::BarrierSync(kBarriersReady, 64);
    DecodeProducer<Config, DecodeShared<Config>>(params, maps, shared, kv_head).Run(part, ids);
    WriteEmpty<Config>(params, part_index, kv_head, row_tile);
  } else {
    if (warp == 0) {
      shared.Initialise(lane);
      __syncwarp();
      ptx::BarrierArrive(kBarriersReady, 64);
      if (lane < 2) ptx::TmaPrefetchMap(&maps.plane[lane]);
    }
    // Behind the fence in Initialise, which would wait for it.
    const DecodePart part = params.parts[part_index];
    DecodeConsumer<Config, kMergeInside>(params, shared, kv_head, row_tile).Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
