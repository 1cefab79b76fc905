#pragma once
// Folding partial attention results on CUDA: argument checks. Pure host code; the kernel
// (kernels/cuda/merge_states.cu) is one launch without workspace. The host's MergePartials
// (ops/sparse_attention.h) is the same fold.
#include "base/result.h"
#include "kernels/cuda/merge_states_params.h"
#include "ops/cuda/decode_attention.h"

namespace fathom::ops {

Status CheckMergeStatesParams(const kernels::cuda::MergeStatesParams& params, const GpuLimits& gpu);

}  // namespace fathom::ops
