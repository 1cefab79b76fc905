#pragma once
// Bytes moved and FLOPs of each op of a step, ideal: every operand is read once and every result
// written once. A multiply-add counts as two FLOPs. Counts are doubles: they feed ratios.
#include <cstdint>

#include "cost/hardware.h"

namespace fathom::cost {

// Query-key pairs that a causal mask leaves when the last `query_tokens` of `kv_tokens` ask.
double CausalPairs(double query_tokens, double kv_tokens);

// y [rows, n] = x [rows, k] W^T, the weight taking `weight_bytes`.
Cost Linear(double rows, double n, double k, double weight_bytes, double activation_bytes = 4);
Cost Norm(double rows, double dim, double activation_bytes = 4);  // with the residual sum
Cost Embed(double rows, double dim, double weight_bytes, double activation_bytes = 4);

// Rotates `elements` a token (query and key heads) and writes `cache_bytes` a token.
Cost RopeCache(double tokens, double elements, double cache_bytes, double activation_bytes = 4);

struct AttentionShape {
  double query_tokens = 0;
  double kv_tokens = 0;  // read from the cache: the sum over sequences
  double pairs = 0;      // query-key pairs after masking, the sum over sequences
};

// kv_bytes: of one token of one layer, keys and values. QK^T and PV: 2 FLOPs a pair, head and
// dimension each; the softmax's exponentials are not counted.
Cost GqaAttention(const AttentionShape& shape, double heads, double head_dim, double head_dim_v,
                  double kv_bytes, double activation_bytes = 4);

struct MlaDims {
  double heads = 0;
  double kv_lora = 0;
  double nope = 0;
  double rope = 0;
  double v = 0;
};

// On the latents: 2 (2 kv_lora + rope) FLOPs a pair and head, and each query passes W_UK and W_UV.
Cost MlaAbsorbed(const AttentionShape& shape, const MlaDims& dims, double kv_bytes,
                 double weight_bytes, double activation_bytes = 4);
// On keys and values expanded from the latents: 2 (nope + rope + v) FLOPs a pair and head, and each
// latent passes W_UK and W_UV once.
Cost MlaExpanded(const AttentionShape& shape, const MlaDims& dims, double kv_bytes,
                 double weight_bytes, double activation_bytes = 4);

// Experts that at least one of `tokens` picks, when each picks top_k of `experts` evenly.
double ExpertsTouched(double tokens, double experts, double top_k);
// Gate, up and down of each token's experts; the weights of the experts touched are read once.
Cost Experts(double tokens, double experts, double top_k, double hidden, double intermediate,
             double bytes_per_weight, double activation_bytes = 4);

}  // namespace fathom::cost
