#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"
#include "kernels/cuda/sm90/decode_latent/kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <CacheCode kCode>
cudaError_t RunDecodeLatentSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::LatentConfig<kCode>;
  sm90::LatentMaps maps;
  const int box_tokens = params.page_tokens < Config::kTile ? params.page_tokens : Config::kTile;
  MapShape shape = {.num_pages = params.num_pages,
                    .num_heads = 1,
                    .tokens = params.page_tokens,
                    .elements = Config::kDimV,
                    .box_tokens = box_tokens,
                    .box_elements = 128,
                    .element_bytes = 1};
  cudaError_t status = MakeMap(params.plane[0], shape, &maps.codes);
  if (status == cudaSuccess) {
    status = MakePlaneMap(params.plane[1], params.num_pages, 1, params.page_tokens, Config::kRope,
                          box_tokens, &maps.rope);
  }
  if (status == cudaSuccess) {
    shape.elements = shape.box_elements = Config::kGroups;
    shape.element_bytes = 4;
    shape.swizzle_bytes = 0;
    status = MakeMap(params.scales[0], shape, &maps.scales);
  }
  if (status == cudaSuccess) {
    status = LaunchLarge<sm90::DecodeLatentKernel<Config>>(
        {.blocks = params.num_parts * params.row_tiles,
         .threads = Config::kThreads,
         .shared_bytes = Config::kSharedBytes},
        stream, params, maps);
  }
  if (status != cudaSuccess) return status;
  return RunDecodeMerge<Config::kDimV, Config::kRows, 90>(params, stream);
}

}  // namespace fathom::kernels::cuda
