#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/decode_schedule.h"

namespace fathom::kernels::cuda::sm90 {

// Sequences without keys have no item: their rows become zeros (log-sum-exp -inf).
template <class Config>
__device__ __forceinline__ void WriteEmpty(const DecodeParams& params, int part, int kv_head,
                                           int row_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int32_t* lengths = DecodeLengths(params);
  for (int sequence = part; sequence < params.num_sequences; sequence += params.num_parts) {
    if (lengths[sequence] != 0) continue;
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

}  // namespace fathom::kernels::cuda::sm90
