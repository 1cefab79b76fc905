#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"
#include "kernels/cuda/sm90/decode_latent/kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <CacheCode kCode, bool kFloat16>
cudaError_t RunDecodeLatentSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::LatentConfig<kCode, kFloat16>;
  sm90::LatentMaps maps;
  const int box_tokens = params.page_tokens < Config::kTile ? params.page_tokens : Config::kTile;
  const MapShape shape = {.num_pages = params.num_pages,
                          .num_heads = 1,
                          .tokens = params.page_tokens,
                          .elements = Config::kTokenBytes / 4,
                          .box_tokens = box_tokens,
                          .box_elements = Config::kTokenBytes / 4,
                          .element_bytes = 4,
                          .swizzle_bytes = 0};
  cudaError_t status = MakeMap(params.plane[0], shape, &maps.tokens);
  if (status == cudaSuccess) {
    status = LaunchLarge<sm90::DecodeLatentKernel<Config>>(
        {.blocks = params.num_parts * params.row_tiles,
         .threads = Config::kThreads,
         .shared_bytes = Config::kSharedBytes,
         .together = params.merge_inside},
        stream, params, maps);
  }
  if (status != cudaSuccess || params.merge_inside) return status;
  return RunDecodeMerge<Config::kDimV, Config::kRows, 90>(params, stream);
}

}  // namespace fathom::kernels::cuda
