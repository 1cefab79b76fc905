#pragma once
// Prefill attention on CUDA: plans and argument checks. Pure host code; see decode_attention.h for
// what Plan, Prepare and Run are.
#include <cstdint>
#include <limits>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/cuda/prefill_params.h"
#include "ops/cuda/decode_attention.h"

namespace fathom::ops {

// Upper bounds, where a step may hold less.
struct PrefillAttentionShape {
  int32_t num_sequences = 0;
  int32_t num_tokens = 0;           // query tokens of all sequences
  int32_t max_kv_tokens = 0;        // of one sequence
  int64_t max_total_kv_tokens = 0;  // of all sequences; 0: num_sequences * max_kv_tokens
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_qk = 0;
  int32_t head_dim_v = 0;
  int32_t page_tokens = 0;  // 16, 32, 64, 128; 0: keys and values are contiguous
  bool causal = true;
  // Causal only: the query at position p sees key k when p - k <= window or k < anchors.
  int32_t window = std::numeric_limits<int32_t>::max();
  int32_t anchors = 0;
  // What is visited is listed (ops/cuda/tile_lists.h); in place of window and anchors.
  bool tile_lists = false;
  DType dtype = DType::kBF16;  // of queries, keys, values and output
};

struct PrefillAttentionOptions {
  bool portable = false;  // kernels that need nothing newer than sm_80, also on newer GPUs
  PrefillTuning tuning;
};

struct PrefillAttentionPlan {
  PrefillAttentionShape shape;
  AttentionKernel kernel;
  int32_t rows = 0;           // query rows of a tile
  int32_t max_tiles = 0;      // of all sequences, one head
  int32_t section_heads = 0;  // query heads whose keys and values share L2
  int32_t num_blocks = 0;
  int64_t workspace_bytes = 0;
  int64_t zeroed_bytes = 0;  // the workspace's head, to be zeroed once when it is allocated

  std::string Describe() const;
};

// The error lists what this GPU supports and why each candidate kernel was refused.
Result<PrefillAttentionPlan> PlanPrefillAttention(const PrefillAttentionShape& shape,
                                                  const PrefillAttentionOptions& options,
                                                  const GpuLimits& gpu);

// Fills in what the plan decides and places the workspace (256-byte aligned device memory).
void BindPrefillWorkspace(const PrefillAttentionPlan& plan, void* workspace,
                          kernels::cuda::PrefillParams* params);

// Pointers, alignment and strides of a bound PrefillParams against its plan.
Status CheckPrefillParams(const PrefillAttentionPlan& plan,
                          const kernels::cuda::PrefillParams& params);

}  // namespace fathom::ops
