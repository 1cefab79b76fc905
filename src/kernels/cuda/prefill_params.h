#pragma once
// Parameters of the CUDA prefill attention kernels. POD, no CUDA headers. Pointers are device
// memory.
#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda {

// A tile of query rows, all heads: rows [row, row + rows of the kernel) of a sequence.
struct PrefillTile {
  int32_t sequence = 0;
  int32_t row = 0;
};

struct PrefillParams {
  // bf16 [num_tokens, num_heads, head_dim_qk]; strides in elements, multiples of 8.
  const void* q = nullptr;
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t num_tokens = 0;

  // Keys and values. Paged: page_table says where. Contiguous (page_table null): one "page" of
  // page_tokens rows, sequence i at rows [kv_starts[i], kv_starts[i] + kv_lengths[i]).
  PagedPlane k;
  PagedPlane v;
  // 192/128 only: the last 64 elements of keys, one row for all heads, in the rows that k has; then
  // k has 128. Null: k has all 192.
  PagedPlane k_pe;
  int64_t num_pages = 0;
  int64_t page_tokens = 0;
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;
  const int32_t* kv_starts = nullptr;   // [num_sequences], contiguous only
  const int32_t* kv_lengths = nullptr;  // [num_sequences], the queries' own keys included
  // [num_sequences], where the keys are a part of the sequence's: its tokens from the first of them
  // on. Null: kv_lengths.
  const int32_t* causal_lengths = nullptr;
  const int32_t* query_starts = nullptr;  // [num_sequences + 1]

  void* out = nullptr;  // bf16 [num_tokens, num_heads, head_dim_v]; strides multiples of 8
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  float* lse = nullptr;  // natural log; [num_tokens, num_heads]; may be null
  float scale = 0;       // > 0
  // Causal: query i of n sees keys [0, causal_length - n + 1 + i), those that there are. Else all
  // of the sequence's keys.
  bool causal = true;
  // Causal only: the query at position p sees key k when p - k <= window or k < anchors. Tiles that
  // no query of a tile sees are not visited.
  int32_t window = INT32_MAX;
  int32_t anchors = 0;

  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;

  // Plan and workspace.
  bool portable = false;  // kernels of sm80
  bool float16 = false;   // queries, cache and output: float16 where they are said to be bf16
  int32_t max_tiles = 0;
  int32_t num_blocks = 0;        // persistent: as many as the GPU has SMs
  int32_t section_heads = 0;     // query heads worked on together, so that their keys stay in L2
  PrefillTile* tiles = nullptr;  // longest first
  int32_t* num_tiles = nullptr;  // [1]
  int32_t* next = nullptr;       // [1] work counter, zero before and after

  // Sparse: what each tile of query rows of each head visits, those with the most tiles first, in
  // place of window and anchors. Every row of every head is in one list. Null: no lists.
  const PrefillList* lists = nullptr;
  const int32_t* num_lists = nullptr;  // [1]
  const ListedTile* listed = nullptr;  // of 128 keys
  const uint32_t* masks = nullptr;     // [4] each
};

}  // namespace fathom::kernels::cuda
