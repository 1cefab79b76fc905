#pragma once
// Prefill attention for sm_90a: a producer warp loads by TMA, two or three consumer warpgroups of
// 64 query rows each multiply and reduce.
//
// Blocks are persistent and take (query tile, head) pairs from a counter, those with the most keys
// first. Keys are walked from the end, so that only the first visits need masks. In each turn a
// warpgroup issues S(n) = Q K(n)' and O += P(n+1) V(n+1) together, and works on S(n)'s softmax
// while the second product still runs; with two warpgroups, named barriers make one's softmax run
// under the other's products. The turns do not stop between query tiles: the last product of one is
// issued with the first scores of the next, whose queries were asked for a tile earlier.
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/prefill/consumer.cuh"
#include "kernels/cuda/sm90/prefill/producer.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void PrefillKernel(const __grid_constant__ PrefillParams params,
                                                   const __grid_constant__ PrefillMaps maps) {
  const PrefillShared<Config> shared(ptx::DynamicShared());
  if (threadIdx.x == 0) {
    ptx::TmaPrefetchMap(&maps.q);
    ptx::TmaPrefetchMap(&maps.k);
    if (Config::kPeBlocks > 0) ptx::TmaPrefetchMap(&maps.k_pe);
    ptx::TmaPrefetchMap(&maps.v);
    ptx::TmaPrefetchMap(&maps.out);
    shared.Initialise();
  }
  __syncthreads();
  ptx::WaitForPreviousKernel();
  if (threadIdx.x < 128) {
    ptx::RegistersDecrease<Config::kProducerRegisters>();
    if (threadIdx.x < 32) PrefillProducer<Config>(params, maps, shared).Run();
  } else {
    ptx::RegistersIncrease<Config::kConsumerRegisters>();
    PrefillConsumer<Config>(params, maps, shared).Run();
  }
}

}  // namespace fathom::kernels::cuda::sm90
