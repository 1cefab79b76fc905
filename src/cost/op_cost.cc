#include "cost/op_cost.h"

#include <cmath>

namespace fathom::cost {

double CausalPairs(double query_tokens, double kv_tokens) {
  return query_tokens * (kv_tokens - query_tokens) + query_tokens * (query_tokens + 1) / 2;
}

Cost Linear(double rows, double n, double k, double weight_bytes, double activation_bytes) {
  return {weight_bytes + rows * (n + k) * activation_bytes, 2 * rows * n * k};
}

Cost Norm(double rows, double dim, double activation_bytes) {
  // Reads input and residual, writes their sum and the result; square, add, scale, weight.
  return {4 * rows * dim * activation_bytes, 5 * rows * dim};
}

Cost Embed(double rows, double dim, double weight_bytes, double activation_bytes) {
  return {rows * dim * (weight_bytes + activation_bytes), 0};
}

Cost RopeCache(double tokens, double elements, double cache_bytes, double activation_bytes) {
  return {tokens * (2 * elements * activation_bytes + cache_bytes), 3 * tokens * elements};
}

Cost GqaAttention(const AttentionShape& shape, double heads, double head_dim, double head_dim_v,
                  double kv_bytes, double activation_bytes) {
  const double query_elements = shape.query_tokens * heads * (head_dim + head_dim_v);
  return {shape.kv_tokens * kv_bytes + query_elements * activation_bytes,
          2 * shape.pairs * heads * (head_dim + head_dim_v)};
}

Cost MlaAbsorbed(const AttentionShape& shape, const MlaDims& d, double kv_bytes,
                 double weight_bytes, double activation_bytes) {
  const double query_elements = shape.query_tokens * d.heads * (d.nope + d.rope + d.v);
  const double absorb = 2 * shape.query_tokens * d.heads * d.kv_lora * (d.nope + d.v);
  return {shape.kv_tokens * kv_bytes + weight_bytes + query_elements * activation_bytes,
          2 * shape.pairs * d.heads * (2 * d.kv_lora + d.rope) + absorb};
}

Cost MlaExpanded(const AttentionShape& shape, const MlaDims& d, double kv_bytes,
                 double weight_bytes, double activation_bytes) {
  const double query_elements = shape.query_tokens * d.heads * (d.nope + d.rope + d.v);
  const double expand = 2 * shape.kv_tokens * d.heads * d.kv_lora * (d.nope + d.v);
  return {shape.kv_tokens * kv_bytes + weight_bytes + query_elements * activation_bytes,
          2 * shape.pairs * d.heads * (d.nope + d.rope + d.v) + expand};
}

double ExpertsTouched(double tokens, double experts, double top_k) {
  return experts * (1 - std::pow(1 - top_k / experts, tokens));
}

Cost Experts(double tokens, double experts, double top_k, double hidden, double intermediate,
             double bytes_per_weight, double activation_bytes) {
  const double weights = 3 * hidden * intermediate;
  const double rows = tokens * top_k;
  return {ExpertsTouched(tokens, experts, top_k) * weights * bytes_per_weight +
              rows * (2 * hidden + 3 * intermediate) * activation_bytes,
          2 * rows * weights};
}

}  // namespace fathom::cost
