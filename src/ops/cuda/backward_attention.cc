#include "ops/cuda/backward_attention.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/sm80/backward/config.h"

namespace fathom::ops {

Status CheckBackwardParams(const kernels::cuda::BackwardParams& params, int head_dim,
                           const GpuLimits& gpu) {
  if (head_dim != 64 && head_dim != 128) {
    return Err(Code::kUnsupported,
               "attention backward: head dim {}: expected 64 or 128 (in bf16 or float16)",
               head_dim);
  }
  // The same in both types.
  const int64_t shared = head_dim == 64
                             ? kernels::cuda::sm80::BackwardConfig<64, false>::kSharedBytes
                             : kernels::cuda::sm80::BackwardConfig<128, false>::kSharedBytes;
  if (gpu.compute_major < 8 || gpu.shared_bytes_per_block < shared) {
    return Err(
        Code::kUnsupported,
        "attention backward, head dim {}: needs compute capability 8.0 and {} bytes of shared "
        "memory a block, this GPU has {}.{} and {}",
        head_dim, shared, gpu.compute_major, gpu.compute_minor, gpu.shared_bytes_per_block);
  }
  const int64_t rows = int64_t{params.batch} * params.length * params.num_heads;
  if (params.batch < 1 || params.length < 1 || params.num_kv_heads < 1 || params.num_heads < 1 ||
      params.num_heads % params.num_kv_heads != 0 || rows > std::numeric_limits<int32_t>::max()) {
    return Err(Code::kInvalidArgument,
               "attention backward: {} sequences of {} tokens, {} heads, {} kv heads: expected at "
               "least one of each, query heads a multiple of kv heads, and rows below 2^31",
               params.batch, params.length, params.num_heads, params.num_kv_heads);
  }
  for (const auto* tensor : {&params.q, &params.k, &params.v, &params.out, &params.d_out,
                             &params.d_q, &params.d_k, &params.d_v}) {
    if (tensor->data == nullptr || reinterpret_cast<uintptr_t>(tensor->data) % 16 != 0 ||
        tensor->token_stride <= 0 || tensor->token_stride % 8 != 0 || tensor->head_stride <= 0 ||
        tensor->head_stride % 8 != 0) {
      return Err(Code::kInvalidArgument,
                 "attention backward: a tensor at {} with strides {} and {}: expected 16-byte "
                 "aligned memory and positive multiples of 8 elements",
                 tensor->data, tensor->token_stride, tensor->head_stride);
    }
  }
  if (params.lse == nullptr || params.row_stats == nullptr) {
    return Err(Code::kInvalidArgument,
               "attention backward: the forward pass's log-sum-exp and the workspace row_stats are "
               "needed");
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale)) {
    return Err(Code::kInvalidArgument, "attention backward: scale {}: expected a positive number",
               params.scale);
  }
  return {};
}

}  // namespace fathom::ops
