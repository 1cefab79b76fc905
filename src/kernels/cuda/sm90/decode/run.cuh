#pragma once
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/decode/kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

template <int kDimQk, int kDimV, int kRows>
cudaError_t RunDecodeSm90(const DecodeParams& params, cudaStream_t stream) {
  using Config = sm90::DecodeConfig<kDimQk, kDimV, kRows, (kDimQk > kDimV)>;
  const int box_tokens = params.page_tokens < Config::kTile ? params.page_tokens : Config::kTile;
  sm90::DecodeMaps maps;
  for (int i = 0; i < 2; ++i) {
    const int dim = (i == 0 ? Config::kFirstBlocks : Config::kSecondBlocks) * Config::kColumns;
    if (const cudaError_t status =
            MakePlaneMap(params.plane[i], params.num_pages, params.num_kv_heads, params.page_tokens,
                         dim, box_tokens, &maps.plane[i]);
        status != cudaSuccess) {
      return status;
    }
  }
  const auto kernel = sm90::DecodeKernel<Config>;
  static const cudaError_t configured = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes);
  if (configured != cudaSuccess) return configured;
  const int groups = params.num_kv_heads * params.row_tiles;
  kernel<<<params.num_parts * groups, Config::kThreads, Config::kSharedBytes, stream>>>(params,
                                                                                        maps);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;

  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  const int rows =
      params.num_sequences * params.max_query_tokens * params.num_kv_heads * params.group;
  if (params.merge_by_block) {
    constexpr int kWarps = 8;
    config.gridDim = dim3(rows * (kDimV / 64));
    config.blockDim = dim3(kWarps * 32);
    return cudaLaunchKernelEx(&config, sm90::DecodeMergeKernel<kDimV, kRows, kWarps, true>, params);
  }
  constexpr int kWarps = 8;
  const int units = rows * (kDimV == 64 ? 1 : kDimV / 128);
  config.gridDim = dim3((units + kWarps - 1) / kWarps);
  config.blockDim = dim3(kWarps * 32);
  return cudaLaunchKernelEx(&config, sm90::DecodeMergeKernel<kDimV, kRows, kWarps, false>, params);
}

}  // namespace fathom::kernels::cuda
