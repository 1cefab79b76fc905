#pragma once
// What copying alone takes: the tiles of a decode plan's parts brought to shared memory by the copy
// engine, as boxes of the same shape in the same order, and dropped. No kernel that reads a cache
// this way can be faster.
#include <cuda_runtime_api.h>

#include "kernels/cuda/decode_params.h"

namespace fathom::bench {

// params: prepared, dense (no tile lists), pages of 64 tokens. latent: plane 1 is the tail of keys,
// and a quantised token is one record. blocks_per_sm: of the plan's kernel; they divide an SM's
// shared memory.
cudaError_t RunCopyTiles(const kernels::cuda::DecodeParams& params, int dim_qk, int dim_v,
                         int blocks_per_sm, cudaStream_t stream);

}  // namespace fathom::bench
