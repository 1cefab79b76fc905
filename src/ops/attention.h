#pragma once
// Causal attention of a step's queries over their pages, prompt and generated tokens in one call.
//
// Reduction: keys are taken in spans of 256 counted from position 0; each span gives a fresh
// (m, l, O), folded left in order. How work is cut over threads never changes that order, so a
// query's result does not depend on its batch, its chunk, the page size or the thread count. GQA
// has one path for both roles. MLA's path follows the role: prompt tokens expand keys and values
// from the latents tile by tile, generated tokens work on the latents themselves (absorbed).
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/cache_format.h"
#include "ops/context.h"
#include "ops/linear.h"
#include "ops/step_inputs.h"

namespace fathom::ops::attention {

inline constexpr int32_t kSpanTokens = 256;

struct Plan {
  StepBucket bucket;
  size_t workspace_bytes = 0;  // what Run takes from context.arena and gives back
};

struct GqaShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads; a group's queries share each key read
  int32_t head_dim = 0;
  int32_t head_dim_v = 0;
  float softmax_scale = 0;
  Precision precision = Precision::kBF16;
};

struct GqaArgs {
  TensorView q;    // [num_tokens, num_heads, head_dim] f32, rotated
  TensorView out;  // [num_tokens, num_heads, head_dim_v] f32
  CacheView cache;
  int32_t layer = 0;       // in the cache's layer group
  int32_t page_table = 0;  // index into StepInputs::page_tables
};

Result<Plan> MakePlan(const GqaShape& shape, const CacheFormat& format, const StepBucket& bucket,
                      int num_threads);
Status Run(const Plan& plan, const GqaShape& shape, const GqaArgs& args, const StepInputs& inputs,
           Context& context);

struct MlaShape {
  int32_t num_heads = 0;
  int32_t kv_lora_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  float softmax_scale = 0;  // YaRN's factor included
  Precision precision = Precision::kBF16;
};

// The two halves of each head of kv_b_proj, in the forms that the two paths read.
struct MlaWeights {
  struct Head {
    linear::PackedWeight uk_absorb;  // [kv_lora_rank, nope_dim]: W_UK[h]^T, q_lat = uk_absorb q
    linear::PackedWeight uk;         // [nope_dim, kv_lora_rank], row-major: expands keys
    linear::PackedWeight uv;         // [v_dim, kv_lora_rank]: expands values, and o = uv o_lat
  };
  std::vector<Head> heads;
  size_t Bytes() const;
};

// kv_b_proj: [num_heads * (nope_dim + v_dim), kv_lora_rank].
Result<MlaWeights> PackMlaWeights(const linear::WeightSource& kv_b_proj, const MlaShape& shape,
                                  Device& device, const kernels::cpu::KernelTable& cpu);
size_t PackedMlaBytes(DType stored, const MlaShape& shape);

struct MlaArgs {
  TensorView q;    // [num_tokens, num_heads, nope_dim + rope_dim] f32, the rope part rotated
  TensorView out;  // [num_tokens, num_heads, v_dim] f32
  CacheView cache;
  int32_t layer = 0;
  int32_t page_table = 0;
};

Result<Plan> MakePlan(const MlaShape& shape, const CacheFormat& format, const StepBucket& bucket,
                      int num_threads);
Status Run(const Plan& plan, const MlaShape& shape, const MlaWeights& weights, const MlaArgs& args,
           const StepInputs& inputs, Context& context);

}  // namespace fathom::ops::attention
