#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/decode_schedule.h"

namespace fathom::kernels::cuda::sm90 {

// Sequences without keys, and heads without a listed tile, have no item: their rows become zeros
// (log-sum-exp -inf).
template <class Config>
__device__ __forceinline__ void WriteEmpty(const DecodeParams& params, int part, int kv_head,
                                           int row_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int32_t* lengths = DecodeLengths(params);
  const int count = DecodeLineSize(params);
  for (int i = part; i < count; i += params.num_parts) {
    if (lengths[i] != 0) continue;
    const DecodeList list = DecodeListAt(params, i, kv_head);
    const int begin = params.query_starts[list.sequence];
    const int rows = (params.query_starts[list.sequence + 1] - begin) * list.num_heads;
    const int first = row_tile * Config::kRows;
    for (int r = first; r < rows && r < first + Config::kRows; ++r) {
      const int64_t token = begin + r / list.num_heads;
      const int64_t head = list.first_head + r % list.num_heads;
      auto* out = static_cast<uint16_t*>(params.out) + token * params.out_token_stride +
                  head * params.out_head_stride;
      for (int d = lane; d < Config::kDimV; d += 32) out[d] = 0;
      if (params.lse != nullptr && lane == 0) {
        params.lse[token * params.num_kv_heads * params.group + head] = -INFINITY;
      }
    }
  }
}

}  // namespace fathom::kernels::cuda::sm90
