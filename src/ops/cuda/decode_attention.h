#pragma once
// Decode attention on CUDA: plans and argument checks. Pure host code that needs no CUDA toolkit;
// the kernels are in kernels/cuda (launch.h).
//
//   Plan     once for a static shape: kernel, grid, how keys are divided, workspace.
//   Prepare  once a step: lengths and page tables on the device become the parts' schedule.
//   Run      once a layer.
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/cuda/decode_params.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/tuning.h"

namespace fathom::ops {

// Upper bounds, where a step may hold less.
struct DecodeAttentionShape {
  int32_t num_sequences = 0;
  int32_t max_query_tokens = 1;  // of one sequence, 1 to 8
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // MLA (absorbed): 1
  int32_t head_dim_qk = 0;   // MLA: 576 = 512 latent + 64 rotated
  int32_t head_dim_v = 0;    // MLA: 512
  int32_t page_tokens = 64;
  int32_t max_kv_tokens = 0;
  DType dtype = DType::kBF16;  // of queries, output and what is not quantised of the cache
  // How the cache is stored; kBf16: as `dtype` says. Quantised: one scale a token and head; MLA:
  // one for each 128 latents of a token, rotated keys as `dtype` says.
  kernels::cuda::CacheCode code = kernels::cuda::CacheCode::kBf16;
  // Only listed tiles are visited (ops/cuda/tile_lists.h); max_kv_tokens bounds those of one list.
  // GQA, pages of 64 or 128.
  bool tile_lists = false;
  int32_t max_lists = 0;  // 0: one for each sequence and kv head
};

// In what pieces a sequence's keys are summed. All are bit-equal from run to run.
enum class Reduction : uint8_t {
  kBalanced,        // cut where every SM gets the same bytes; bits depend on the batch
  kBatchInvariant,  // cut by the sequence's own length
  kSpans,           // a fresh state every 256 keys, whatever the plan; not with tile lists
};

// How a block divides a tile.
enum class DecodeKernel : uint8_t {
  kAuto,        // warpgroups; for long balanced walks of few rows warps, unless rows are tuned
  kWarpgroups,  // whole warpgroups multiply: products of 64 keys, or of 64 rows
  kWarps,       // each warp takes 16 keys and works alone until the item ends
};

struct DecodeAttentionOptions {
  Reduction reduction = Reduction::kBalanced;
  DecodeKernel kernel = DecodeKernel::kAuto;
  bool portable = false;  // kernels that need nothing newer than sm_80, also on newer GPUs
  DecodeTuning tuning;
};

struct DecodeAttentionPlan {
  DecodeAttentionShape shape;
  AttentionKernel kernel;
  int32_t rows = 0;       // query rows of one block
  int32_t row_tiles = 0;  // blocks that share a kv head's keys
  int32_t line_size = 0;  // sequences, or tile lists
  int32_t num_parts = 0;
  int32_t num_slots = 0;  // partial results
  kernels::cuda::DecodeSplit split;
  bool merge_by_block = false;
  bool merge_inside = false;  // by the decode kernel itself
  int64_t workspace_bytes = 0;

  int PartialElementBytes() const;  // of an element of a partial output
  std::string Describe() const;     // one line for --explain and logs
};

// The error lists what this GPU supports and why each candidate kernel was refused.
Result<DecodeAttentionPlan> PlanDecodeAttention(const DecodeAttentionShape& shape,
                                                const DecodeAttentionOptions& options,
                                                const GpuLimits& gpu);

// Fills in what the plan decides and places the workspace (256-byte aligned device memory). One Run
// at a time works with it, on the lengths that its last Prepare saw: blocks count on each other's
// partial results, and would wait for ever for one that does not come.
void BindDecodeWorkspace(const DecodeAttentionPlan& plan, void* workspace,
                         kernels::cuda::DecodeParams* params);

// Pointers, alignment and strides of a bound DecodeParams against its plan. Reads no device memory.
Status CheckDecodeParams(const DecodeAttentionPlan& plan,
                         const kernels::cuda::DecodeParams& params);

}  // namespace fathom::ops
