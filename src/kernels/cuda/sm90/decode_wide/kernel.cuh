#pragma once
// MLA decode for sm_90a with 64 query rows a block: queries are the rows of both products, as many
// heads fill them. (Few heads: sm90/decode.) Two consumer warpgroups and a producer warp; a ring of
// two tiles. With 128 heads two blocks need the same keys: as a cluster each loads half of them,
// into both, so that L2 is read once.
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/decode/producer.cuh"
#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_wide/consumer.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void DecodeWideKernel(const __grid_constant__ DecodeParams params,
                                                      const __grid_constant__ DecodeMaps maps) {
  const WideShared<Config> shared(ptx::DynamicShared());
  const int part_index = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int row_tile = static_cast<int>(blockIdx.x) % params.row_tiles;
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
  if constexpr (Config::kCluster > 1) {
    ptx::ClusterArrive();
    ptx::ClusterWait();
  } else {
    __syncthreads();
  }

  constexpr int kProducer = Config::kConsumerThreads / 32;
  if (warp >= kProducer) {
    ptx::RegistersDecrease<Config::kProducerRegisters>();
    if (warp == kProducer) {
      DecodeProducer<Config, WideShared<Config>>(params, maps, shared, 0).Run(part, ids);
      WriteEmpty<Config>(params, part_index, 0, row_tile);
    }
  } else {
    ptx::RegistersIncrease<Config::kConsumerRegisters>();
    WideConsumer<Config>(params, shared, row_tile).Run(part_index, part);
  }
  if constexpr (Config::kCluster > 1) {  // the other block may still load into this one
    ptx::ClusterArrive();
    ptx::ClusterWait();
  }
}

}  // namespace fathom::kernels::cuda::sm90
