#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/decode/launch_merge.cuh"
#include "kernels/cuda/sm90/decode_warps/kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <CacheCode kCode, int kDim, int kRows, bool kFloat16>
cudaError_t RunDecodeWarpsSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::WarpsConfig<kCode, kDim, kRows, kFloat16>;
  sm90::WarpsMaps maps;
  const int box_tokens = params.page_tokens < Config::kTile ? params.page_tokens : Config::kTile;
  for (int i = 0; i < 2; ++i) {
    MapShape shape = {.num_pages = params.num_pages,
                      .num_heads = params.num_kv_heads,
                      .tokens = params.page_tokens,
                      .elements = kDim,
                      .box_tokens = box_tokens,
                      .box_elements = Config::kBlockRowBytes / Config::kElementBytes,
                      .element_bytes = Config::kElementBytes,
                      .swizzle_bytes = Config::kBlockRowBytes};
    if (const cudaError_t status = MakeMap(params.plane[i], shape, &maps.plane[i]);
        status != cudaSuccess) {
      return status;
    }
    if constexpr (Config::kQuantised) {
      // Scales of a head lie behind each other: a page's tokens are the elements of one row.
      shape.elements = params.page_tokens;
      shape.tokens = 1;
      shape.box_elements = box_tokens;
      shape.box_tokens = 1;
      shape.element_bytes = 4;
      shape.swizzle_bytes = 0;
      PagedPlane scales = params.scales[i];
      scales.token_stride_bytes = 16;  // of the single row: never used
      if (const cudaError_t status = MakeMap(scales, shape, &maps.scales[i]);
          status != cudaSuccess) {
        return status;
      }
    }
  }
  const int groups = DecodeGroups(params);
  if (const cudaError_t status =
          LaunchLarge<sm90::DecodeWarpsKernel<Config>>({.blocks = params.num_parts * groups,
                                                        .threads = Config::kThreads,
                                                        .shared_bytes = Config::kSharedBytes},
                                                       stream, params, maps);
      status != cudaSuccess) {
    return status;
  }
  return RunDecodeMerge<kDim, kRows, 90>(params, stream);
}

}  // namespace fathom::kernels::cuda
