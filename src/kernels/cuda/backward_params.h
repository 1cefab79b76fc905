#pragma once
// Parameters of the backward pass of dense attention. POD, no CUDA headers. Pointers are device
// memory.
#include <cstdint>

namespace fathom::kernels::cuda {

// bf16 [batch * length, num_heads, head_dim]; strides in elements, multiples of 8.
struct TokenTensor {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// For softmax probabilities P = exp(scale Q K' - lse) and the gradient dO of O = P V:
//   dV = P' dO,  dS = P (dO V' - rowsum(dO O)),  dQ = scale dS K,  dK = scale dS' Q.
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
  // Workspace, [2][batch * length, num_heads]: -lse log2(e) of each row, and -rowsum(dO O).
  float* row_stats = nullptr;

  float scale = 0;
  bool causal = true;
  int32_t batch = 0;
  int32_t length = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
};

}  // namespace fathom::kernels::cuda
