#pragma once
// What copying alone takes: the tiles of a decode plan's parts brought to shared memory by the copy
// engine, as boxes of the same shape in the same order, and dropped.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace fathom::bench {

struct CopyTilesOptions {
  int blocks_per_sm = 1;  // of the plan's kernel
  int slots = 2;  // tiles of a block on their way, at least two; fewer where they do not fit
  // On the device, null when nobody asks: becomes the exclusive or of all words that arrived.
  uint32_t* arrived = nullptr;
};

// params: prepared, dense (no tile lists), pages of 64 tokens, whole tiles. dim_qk > dim_v: plane 1
// is the tail of keys, and a quantised token is one record.
cudaError_t RunCopyTiles(const kernels::cuda::DecodeParams& params, int dim_qk, int dim_v,
                         const CopyTilesOptions& options, cudaStream_t stream);

// The exclusive or of the words that those tiles have in the cache.
cudaError_t RunXorTiles(const kernels::cuda::DecodeParams& params, int dim_qk, int dim_v,
                        uint32_t* words, cudaStream_t stream);

}  // namespace fathom::bench
