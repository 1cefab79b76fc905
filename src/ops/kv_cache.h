#pragma once
// Writes a step's keys and values into their pages, rotating on the way.
//
// How pairs lie is the format's RopeState: kRotatedInterleaved rotates (2i, 2i+1), as DeepSeek
// checkpoints have them, kRotatedHalves (i, i + d/2), kNone copies. Query and key use the same, so
// their dot products do not depend on the choice.
#include <cstdint>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/cache_format.h"
#include "ops/context.h"
#include "ops/rope.h"
#include "ops/step_inputs.h"

namespace fathom::ops::kv_cache {

struct GqaArgs {
  TensorView q;                        // [num_tokens, num_heads, head_dim] f32, rotated in place
  TensorView k;                        // [num_tokens, num_kv_heads, head_dim] f32
  TensorView v;                        // [num_tokens, num_kv_heads, head_dim_v] f32
  const RopeTables* tables = nullptr;  // may rotate the first tables->dim() elements of a head only
  CacheView cache;
  int32_t layer = 0;       // in the cache's layer group
  int32_t page_table = 0;  // index into StepInputs::page_tables
};

// Views may be strided slices of one fused q|k|v product.
Status WriteGqa(const GqaArgs& args, const StepInputs& inputs, Context& context);

struct MlaArgs {
  TensorView q;                        // [num_tokens, num_heads, nope_dim + rope_dim] f32: the last
                                       // rope_dim of each head are rotated in place
  TensorView kv_a;                     // [num_tokens, kv_lora_rank + rope_dim] f32
  const float* norm_weight = nullptr;  // [kv_lora_rank]
  float eps = 1e-6F;
  const RopeTables* tables = nullptr;
  CacheView cache;
  int32_t layer = 0;
  int32_t page_table = 0;
};

// Caches RMSNorm(c_kv) and RoPE(k_pe).
Status WriteMla(const MlaArgs& args, const StepInputs& inputs, Context& context);

}  // namespace fathom::ops::kv_cache
