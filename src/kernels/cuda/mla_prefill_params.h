#pragma once
// Parameters of MLA prefill from latent pages: keys and values are expanded from the cache part by
// part, attended to by the 192/128 prefill kernels, and the parts' results are merged. POD, no CUDA
// headers. Pointers are device memory.
#include <cstdint>

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"

namespace fathom::kernels::cuda {

inline constexpr int kMlaNope = 128;    // elements of a head's queries and keys, not rotated
inline constexpr int kMlaRope = 64;     // rotated ones; of keys, shared by all heads
inline constexpr int kMlaLatent = 512;  // of a token in the cache
inline constexpr int kMlaV = 128;       // of a head's values

// c [m, n] = a [m, k] b [n, k]', bf16 or float16 with float32 sums, all rows behind each other.
struct GemmParams {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool float16 = false;  // in place of bf16
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// The keys of all sequences, one sequence behind the other, are one line, which is cut into parts
// of part_keys. Sequence b's piece of a part is a run of its keys, or nothing.
struct MlaPrefillParams {
  // bf16 [num_tokens, num_heads, 192]: 128, then 64 rotated. Strides in elements, multiples of 8.
  const void* q = nullptr;
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t num_tokens = 0;

  PagedPlane plane[2];  // latents (512), rotated shared keys (64): those of MLA decode
  int64_t num_pages = 0;
  int32_t page_tokens = 0;
  const int32_t* page_table = nullptr;  // [num_sequences, page_table_stride]
  int64_t page_table_stride = 0;
  const int32_t* kv_lengths = nullptr;    // [num_sequences], the queries' own keys included
  const int32_t* query_starts = nullptr;  // [num_sequences + 1]

  const void* w_uk = nullptr;  // bf16 [num_heads, 128, 512]
  const void* w_uv = nullptr;  // bf16 [num_heads, 128, 512]

  void* out = nullptr;   // bf16 [num_tokens, num_heads, 128], contiguous
  float* lse = nullptr;  // natural log; [num_tokens, num_heads]; may be null
  float scale = 0;       // > 0
  bool causal = true;    // query i of n sees keys [0, kv_length - n + 1 + i), else all
  bool float16 = false;  // float16 wherever bf16 is said here

  int32_t num_sequences = 0;
  int32_t num_heads = 0;

  // Plan and workspace.
  int32_t num_parts = 0;
  int32_t part_keys = 0;
  int32_t max_kv_tokens = 0;         // of a sequence in one part
  int32_t max_states = 0;            // merged in one launch
  int32_t* line = nullptr;           // [num_sequences + 1]: where a sequence's keys start
  int32_t* piece_starts = nullptr;   // [num_parts, num_sequences]: row of its first key in the part
  int32_t* piece_lengths = nullptr;  // [num_parts, num_sequences]
  int32_t* causal_lengths = nullptr;  // [num_parts, num_sequences]: PrefillParams::causal_lengths
  void* latents = nullptr;            // bf16 [part_keys, 512]
  void* k_pe = nullptr;               // bf16 [part_keys, 64]
  void* k = nullptr;                  // bf16 [part_keys, num_heads, 128]
  void* v = nullptr;                  // bf16 [part_keys, num_heads, 128]
  // States of parts, bf16 [min(num_parts, max_states) - 1, num_tokens, num_heads, 128] (one more is
  // kept in `out`), and their log-sum-exps.
  void* state_out = nullptr;
  float* state_lse = nullptr;  // [min(num_parts, max_states), num_tokens, num_heads]
  int64_t state_rows = 0;      // of the plan: num_tokens * num_heads at most
  // What states before them were merged into, float32, when there are more.
  float* merged_out = nullptr;
  float* merged_lse = nullptr;
  PrefillParams prefill;       // workspace of the attention kernel, bound for the first part
  int64_t tiles_per_part = 0;  // PrefillParams::tiles of the next part, elements further on
  void* gemm_workspace = nullptr;
  int64_t gemm_workspace_bytes = 0;
};

}  // namespace fathom::kernels::cuda
