#include "ops/cuda/merge_states.h"

#include <limits>

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

Status CheckRows(const char* what, const void* rows, int64_t stride, int dim, bool float32) {
  const int alignment = float32 ? 16 : 8;
  if (rows == nullptr || reinterpret_cast<uintptr_t>(rows) % alignment != 0 || stride < dim ||
      stride % 4 != 0) {
    return Err(Code::kInvalidArgument,
               "merge of attention states: {} at {}, {} elements a row: expected {}-byte aligned "
               "memory and at least {} elements in multiples of 4",
               what, rows, stride, alignment, dim);
  }
  return {};
}

}  // namespace

Status CheckMergeStatesParams(const cuda::MergeStatesParams& params, const GpuLimits& gpu) {
  if (gpu.compute_major < 8) {
    return Err(Code::kUnsupported,
               "merge of attention states: needs compute capability 8.0, this GPU has {}.{}",
               gpu.compute_major, gpu.compute_minor);
  }
  if (params.num_states < 1 || params.num_states > cuda::kMaxMergeStates) {
    return Err(Code::kInvalidArgument, "merge of attention states: {} states: expected 1 to {}",
               params.num_states, cuda::kMaxMergeStates);
  }
  if (params.dim < 4 || params.dim > 512 || params.dim % 4 != 0) {
    return Err(Code::kInvalidArgument,
               "merge of attention states: {} elements a row: expected 4 to 512 in multiples of 4",
               params.dim);
  }
  // Eight rows a block, blocks counted in 31 bits.
  if (params.rows < 1 || params.rows / 8 >= std::numeric_limits<int32_t>::max()) {
    return Err(Code::kInvalidArgument, "merge of attention states: {} rows: expected 1 to {}",
               params.rows, int64_t{8} * std::numeric_limits<int32_t>::max() - 1);
  }
  for (int i = 0; i < params.num_states; ++i) {
    const cuda::AttentionState& state = params.states[i];
    FATHOM_TRY(CheckRows("a state", state.out, state.row_stride, params.dim, state.float32));
    if (state.lse == nullptr) {
      return Err(Code::kInvalidArgument,
                 "merge of attention states: state {} has no log-sum-exp: expected one a row", i);
    }
  }
  return CheckRows("the result", params.out, params.out_row_stride, params.dim, params.out_float32);
}

}  // namespace fathom::ops
