#pragma once
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/sm90/prefill/kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <int kDimQk, int kDimV, bool kLists, bool kFloat16>
cudaError_t RunPrefillSm90(const PrefillParams& params, cudaStream_t stream) {
  using Config = sm90::PrefillConfig<kDimQk, kDimV, kLists, kFloat16>;
  sm90::PrefillMaps maps;
  const PagedPlane q = {params.q, 16, params.q_token_stride * 2, params.q_head_stride * 2};
  const int box_tokens = params.page_table != nullptr && params.page_tokens < Config::kKeys
                             ? static_cast<int>(params.page_tokens)
                             : Config::kKeys;
  cudaError_t status = MakePlaneMap(q, 1, params.num_heads, params.num_tokens, kDimQk, 64, &maps.q);
  if (status == cudaSuccess) {
    status = MakePlaneMap(params.k, params.num_pages, params.num_kv_heads, params.page_tokens,
                          kDimQk - Config::kPeBlocks * 64, box_tokens, &maps.k);
  }
  if (status == cudaSuccess && Config::kPeBlocks > 0) {
    PagedPlane pe = params.k_pe;
    const bool shared = pe.base != nullptr;
    if (!shared) {
      pe = params.k;
      pe.base = static_cast<const char*>(pe.base) + (kDimQk - Config::kPeBlocks * 64) * 2;
    }
    status = MakePlaneMap(pe, params.num_pages, shared ? 1 : params.num_kv_heads,
                          params.page_tokens, Config::kPeBlocks * 64, box_tokens, &maps.k_pe);
  }
  if (status == cudaSuccess) {
    status = MakePlaneMap(params.v, params.num_pages, params.num_kv_heads, params.page_tokens,
                          kDimV, box_tokens, &maps.v);
  }
  if (status == cudaSuccess) {
    const PagedPlane out = {params.out, 16, params.out_token_stride * 2,
                            params.out_head_stride * 2};
    status = MakePlaneMap(out, 1, params.num_heads, params.num_tokens, kDimV, 16, &maps.out);
  }
  if (status != cudaSuccess) return status;
  return LaunchLarge<sm90::PrefillKernel<Config>>({.blocks = params.num_blocks,
                                                   .threads = Config::kThreads,
                                                   .shared_bytes = Config::kSharedBytes},
                                                  stream, params, maps);
}

}  // namespace fathom::kernels::cuda
