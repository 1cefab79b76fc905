#pragma once
// MLA prefill from latent pages on CUDA: plans and argument checks. Pure host code; see
// decode_attention.h for what Plan, Prepare and Run are.
//
// Queries of 128 + 64 elements a head attend to keys and values that are made from the cache's 512
// latents a token: k = [W_UK c, k_pe], v = W_UV c (DeepSeek-V2, arXiv:2405.04434, section 2.1; not
// absorbed: below about 170 query tokens a sequence decode's absorbed form takes fewer FLOPs). Keys
// of all sequences, one behind the other, are cut into parts whose expanded keys and values fit a
// bounded workspace. Each part is expanded, attended to by the 192/128 prefill kernel, and leaves a
// partial result; these are merged in order. Cuts lie where the batch's keys lie: bits depend on
// the batch, not on anything else.
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/cuda/mla_prefill_params.h"
#include "ops/cuda/prefill_attention.h"

namespace fathom::ops {

// Upper bounds, where a step may hold less.
struct MlaPrefillShape {
  int32_t num_sequences = 0;
  int32_t num_tokens = 0;           // query tokens of all sequences
  int32_t max_kv_tokens = 0;        // of one sequence
  int64_t max_total_kv_tokens = 0;  // of all sequences; 0: num_sequences * max_kv_tokens
  int32_t num_heads = 0;
  int32_t nope_dim = kernels::cuda::kMlaNope;
  int32_t rope_dim = kernels::cuda::kMlaRope;
  int32_t latent_dim = kernels::cuda::kMlaLatent;
  int32_t v_dim = kernels::cuda::kMlaV;
  int32_t page_tokens = 64;  // 16, 32, 64, 128
  bool causal = true;
  DType dtype = DType::kBF16;  // of queries, cache, weights and output
};

struct MlaPrefillOptions {
  bool portable = false;  // kernels that need nothing newer than sm_80, also on newer GPUs
  int64_t expanded_bytes = int64_t{512} << 20;  // at most, of a part's latents, keys and values
  int32_t max_states = 8;  // partial results kept until they are merged, 2 to 16
  PrefillTuning tuning;
};

struct MlaPrefillPlan {
  MlaPrefillShape shape;
  PrefillAttentionPlan prefill;  // of the largest part
  int32_t num_parts = 0;
  int32_t part_keys = 0;
  int32_t max_states = 0;
  int64_t expanded_bytes = 0;  // these three are of the workspace
  int64_t state_bytes = 0;
  int64_t gemm_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t zeroed_bytes = 0;  // the workspace's head, to be zeroed once when it is allocated

  std::string Describe() const;  // one line for --explain and logs
};

// The error lists what this GPU supports and why each candidate kernel was refused.
Result<MlaPrefillPlan> PlanMlaPrefill(const MlaPrefillShape& shape,
                                      const MlaPrefillOptions& options, const GpuLimits& gpu);

// Fills in what the plan decides and places the workspace (256-byte aligned device memory).
void BindMlaPrefillWorkspace(const MlaPrefillPlan& plan, void* workspace,
                             kernels::cuda::MlaPrefillParams* params);

// Pointers, alignment and strides of a bound MlaPrefillParams against its plan.
Status CheckMlaPrefillParams(const MlaPrefillPlan& plan,
                             const kernels::cuda::MlaPrefillParams& params);

}  // namespace fathom::ops
