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

namespace fathom::kernels::cuda::sm90 {

// Sequences without keys have no item: their rows become zeros (log-sum-exp -inf).
template <class Config>
__device__ __forceinline__ void WriteEmpty(const DecodeParams& params, int part, int kv_head,
                                           int row_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int sequence = part; sequence < params.num_sequences; sequence += params.num_parts) {
    if (params.kv_lengths[sequence] != 0) continue;
    const int begin = params.query_starts[sequence];
    const int rows = (params.query_starts[sequence + 1] - begin) * params.group;
    const int first = row_tile * Config::kRows;
    for (int r = first; r < rows && r < first + Config::kRows; ++r) {
      const int64_t token = begin + r / params.group;
      const int64_t head = kv_head * params.group + r % params.group;
      auto* out = static_cast<uint16_t*>(params.out) + token * params.out_token_stride +
                  head * params.out_head_stride;
      for (int i = lane; i < Config::kDimV; i += 32) out[i] = 0;
      if (params.lse != nullptr && lane == 0) {
        params.lse[token * params.num_kv_heads * params.group + head] = -INFINITY;
      }
    }
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void DecodeKernel(
    const __grid_constant__ DecodeParams params, const __grid_constant__ DecodeMaps maps) {
  extern __shared__ uint8_t memory[];
  const DecodeShared<Config> shared(memory);
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
  }
  // Behind the fence in Initialise, which would wait for them.
  const DecodePart part = params.parts[part_index];
  const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
  __syncthreads();

  if (warp >= Config::kConsumerThreads / 32) {
    if constexpr (Config::kMoveRegisters) {
      ptx::RegistersDecrease<40>();
      if (warp > Config::kConsumerThreads / 32) return;
    }
    DecodeProducer<Config>(params, maps, shared, kv_head).Run(part, ids);
    WriteEmpty<Config>(params, part_index, kv_head, row_tile);
  } else {
    if constexpr (Config::kMoveRegisters) ptx::RegistersIncrease<232>();
    DecodeConsumer<Config>(params, shared, kv_head, row_tile).Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
