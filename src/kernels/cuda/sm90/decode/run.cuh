#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/kernel.cuh"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <class Config>
cudaError_t MakeDecodeMaps(const DecodeParams& params, sm90::DecodeMaps* maps) {
  const int box_tokens = params.page_tokens < Config::kTile ? params.page_tokens : Config::kTile;
  for (int i = 0; i < 2; ++i) {
    const int blocks = i == 0 ? Config::kFirstBlocks : Config::kTileBlocks - Config::kFirstBlocks;
    if (const cudaError_t status =
            MakePlaneMap(params.plane[i], params.num_pages, params.num_kv_heads, params.page_tokens,
                         blocks * Config::kColumns, box_tokens, &maps->plane[i]);
        status != cudaSuccess) {
      return status;
    }
  }
  return cudaSuccess;
}

template <int kDimQk, int kDimV, int kRows, bool kFloat16>
cudaError_t RunDecodeSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::DecodeConfig<kDimQk, kDimV, kRows, kFloat16>;
  sm90::DecodeMaps maps;
  if (const cudaError_t status = MakeDecodeMaps<Config>(params, &maps); status != cudaSuccess) {
    return status;
  }
  const int groups = params.num_kv_heads * params.row_tiles;
  const LaunchShape shape = {.blocks = params.num_parts * groups,
                             .threads = Config::kThreads,
                             .shared_bytes = Config::kSharedBytes,
                             .together = params.merge_inside};
  if constexpr (Config::kLatent) {
    if (params.merge_inside) {
      return LaunchLarge<sm90::DecodeKernel<Config, true>>(shape, stream, params, maps);
    }
  }
  if (const cudaError_t status =
          LaunchLarge<sm90::DecodeKernel<Config, false>>(shape, stream, params, maps);
      status != cudaSuccess) {
    return status;
  }
  return RunDecodeMerge<kDimV, kRows, 90>(params, stream);
}

}  // namespace fathom::kernels::cuda
