#pragma once
// Attention over the tiles that a sparse plan lists (ops/sparse_plan.h), on the host: no other key
// is read. Reduction as in ops/attention.h: the listed tiles of each span of 256 positions give a
// fresh (m, l, O), folded left in order; learned rows are a span in front of position 0. A row that
// sees nothing gives zeros and a log-sum-exp of -infinity.
//
// Results are partial when the plan covers a part of the keys: MergePartials folds the parts of
// splits, of sparse pieces or of other devices.
#include <memory>
#include <span>

#include "ops/attention.h"
#include "ops/sparse_plan.h"

namespace fathom::ops::attention {

struct SparseArgs {
  TensorView q;          // [num_tokens, num_heads, head_dim] f32, rotated; MLA: absorbed, 512 + 64
  TensorView out;        // [num_tokens, num_heads, head_dim_v] f32
  float* lse = nullptr;  // [num_tokens, num_heads] natural log; may be null
  CacheView cache;       // GQA: keys and values. MLA: latents and shared keys
  int32_t layer = 0;
  int32_t page_table = 0;
  // [learned_rows, num_kv_heads, dim] of the cache's type; null without learned rows.
  const void* learned_k = nullptr;
  const void* learned_v = nullptr;
};

struct SparsePlan {
  std::shared_ptr<const sparse::Plan> tiles;  // of the step's sequences, in their order
  size_t workspace_bytes = 0;
};

// The tile lists are made where the step's lengths are known on the host, outside the step.
Result<SparsePlan> MakePlan(const GqaShape& shape, const CacheFormat& format,
                            std::shared_ptr<const sparse::Plan> tiles, int num_threads);
Status Run(const SparsePlan& plan, const GqaShape& shape, const SparseArgs& args,
           const StepInputs& inputs, Context& context);

// Normalised output and natural log-sum-exp of one part of the keys.
struct Partial {
  const float* out = nullptr;  // [rows, dim]
  const float* lse = nullptr;  // [rows]
};

// Folds the parts in the order given, by the fold that spans use: the same parts in the same order
// give the same bits; other groupings agree to rounding.
void MergePartials(const kernels::cpu::KernelTable& cpu, std::span<const Partial> parts,
                   int64_t rows, int32_t dim, float* out, float* lse);

}  // namespace fathom::ops::attention
