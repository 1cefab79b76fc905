#pragma once
// MLA decode for sm_90a with 64 query rows a block: queries are the rows of both products, as many
// heads fill them. (Few heads: sm90/decode.) Two consumer warpgroups and four producer warps; two
// tiles in shared memory.
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_wide/consumer.cuh"
#include "kernels/cuda/sm90/decode_wide/producer.cuh"

namespace fathom::kernels::cuda::sm90 {

template <bool kFloat16>
__global__ __launch_bounds__(WideConfig::kThreads,
                             1) void DecodeWideKernel(const __grid_constant__ DecodeParams params,
                                                      const __grid_constant__ DecodeMaps maps) {
  using Config = WideConfig;
  const WideShared shared(ptx::DynamicShared());
  const int part_index = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int row_tile = static_cast<int>(blockIdx.x) % params.row_tiles;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);

  ptx::WaitForPreviousKernel();
  ptx::LaunchDependents();  // what comes next gets ready meanwhile, as a merge kernel
  if (warp == 0) {
    shared.Initialise(lane);
    if (lane < 2) ptx::TmaPrefetchMap(&maps.plane[lane]);
  }
  // Behind the fence in Initialise, which would wait for them.
  const DecodePart part = params.parts[part_index];
  const int32_t ids = params.part_pages[part_index * kDecodePartPages + lane];
  __syncthreads();

  constexpr int kProducer = Config::kConsumerThreads / 32;
  if (warp >= kProducer) {
    ptx::RegistersDecrease<Config::kProducerRegisters>();
    WideProducer(params, maps, shared, warp - kProducer).Run(part, ids);
    if (warp == kProducer) WriteEmpty<Config>(params, part_index, 0, row_tile);
  } else {
    ptx::RegistersIncrease<Config::kConsumerRegisters>();
    WideConsumer<kFloat16>(params, shared, row_tile).Run(part_index, part);
  }
}

}  // namespace fathom::kernels::cuda::sm90
