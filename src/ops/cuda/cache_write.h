#pragma once
// Appending to a paged cache on CUDA: argument checks. Pure host code; the kernel
// (kernels/cuda/cache_write.cu) rotates queries in place, and keys, norms and quantises what is
// cached, and finds each token's page from its position, in one launch without workspace.
#include "base/result.h"
#include "kernels/cuda/cache_write_params.h"
#include "ops/cuda/decode_attention.h"

namespace fathom::ops {

// Shapes, pointers, alignment and strides; says what is supported.
Status CheckCacheWriteParams(const kernels::cuda::CacheWriteParams& params, const GpuLimits& gpu);

}  // namespace fathom::ops
