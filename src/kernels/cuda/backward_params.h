#pragma once
// Parameters of the backward pass of dense attention. POD, no CUDA headers. Pointers are device
// memory.
#include <cstdint>

namespace fathom::kernels::cuda {

// Float16: log2 of what probabilities and their gradients are multiplied by before they are
// rounded.
inline constexpr int kBackwardLiftF16 = 6;

// bf16 or float16 [batch * length, num_heads, head_dim]; strides in elements, multiples of 8.
struct TokenTensor {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// For softmax probabilities P = exp(scale Q K' - lse) and the gradient dO of O = P V:
//   dV = P' dO,  dS = P (dO V' - rowsum(dO O)),  dQ = scale dS K,  dK = scale dS' Q.
//
// Sums are float32; P and dS are rounded to 16 bits. Float16 ends at 65504 and keeps 11 bits down
// to 2^-14; they are 2^6 as large while they are float16, so they keep 11 bits down to 2^-20 and
// are zeros below 2^-31. P is at most 1. The caller scales the loss, and divides the gradients by
// as much, such that
//   - |dO V' - rowsum(dO O)| is below 1023 for every pair that is not masked: then dS is finite,
//   - gradients are below 65504,
//   - and what counts of dS is above 2^-20.
// Nothing is clamped: an infinite dO, dS or result leaves infinities or NaN in the gradients that
// depend on it, and a caller that adapts its factor looks for those.
struct BackwardParams {
  TokenTensor q;  // num_heads
  TokenTensor k;  // num_kv_heads
  TokenTensor v;
  TokenTensor out;
  TokenTensor d_out;
  const float* lse =
      nullptr;  // natural log, [batch * length, num_heads], as the forward pass left it
  TokenTensor d_q;
  TokenTensor d_k;
  TokenTensor d_v;
  // Workspace, [2][batch * length, num_heads]: -lse log2(e) of each row (float16: + 6), and
  // -rowsum(dO O).
  float* row_stats = nullptr;

  float scale = 0;
  bool causal = true;
  bool float16 = false;  // in place of bf16
  int32_t batch = 0;
  int32_t length = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
};

}  // namespace fathom::kernels::cuda
