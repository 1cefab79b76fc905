#pragma once
// Backward pass of dense attention on CUDA: argument checks. Pure host code; the kernels
// (kernels/cuda/sm80/backward) need `row_stats` as workspace and nothing prepared.
#include "base/result.h"
#include "kernels/cuda/backward_params.h"
#include "ops/cuda/decode_attention.h"

namespace fathom::ops {

// bf16 or float16, head dims 64 and 128, any group of heads, causal or full, one length for the
// batch.
Status CheckBackwardParams(const kernels::cuda::BackwardParams& params, int head_dim,
                           const GpuLimits& gpu);

}  // namespace fathom::ops
