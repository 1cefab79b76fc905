#pragma once
// Parameters of the CUDA decode attention kernels. POD, no CUDA headers: planners and tests include
// this without a GPU toolkit. Pointers are device memory unless they say otherwise.
#include <cstdint>

#include "kernels/cuda/cache_code.h"
#include "kernels/cuda/tile_lists.h"

namespace fathom::kernels::cuda {

inline constexpr int kDecodeTileTokens = 64;   // keys of one step of the inner loop
inline constexpr int kGroupInverseShift = 20;  // exact while rows * group < 2^20
inline constexpr int kDecodePartPages = 32;    // page ids that travel with a part
inline constexpr int kLatentScaleGroup = 128;  // latent codes that share a scale

// One plane of a paged cache, bf16: page p, token t, head h at
// base + p * page_stride + t * token_stride + h * head_stride (bytes, multiples of 16).
struct PagedPlane {
  const void* base = nullptr;
  int64_t page_stride_bytes = 0;
  int64_t token_stride_bytes = 0;
  int64_t head_stride_bytes = 0;
};

// Where one CTA column of the grid (a part) starts to work and how much of it there is.
struct DecodePart {
  int32_t sequence = 0;   // sparse: list
  int32_t tile = 0;       // first tile, in that sequence
  int32_t num_tiles = 0;  // 0: nothing; may reach into the sequences that follow
  int32_t slot = 0;       // partial result of its first item
  int32_t kv_tokens = 0;  // of that sequence; sparse: to visit
  int32_t query_begin = 0;
  int32_t query_tokens = 0;
  int32_t unused = 0;
};

// The partial results of one sequence: slots [slot, slot + count). One: it was written directly.
struct DecodeMerge {
  int32_t slot = 0;
  int32_t count = 0;
};

// How a sequence's keys are divided for reduction.
//   max_segments == 0: wherever the parts are cut (best balance; bits depend on the batch).
//   otherwise: into segments of min_segment_tiles * 2^n tiles, the smallest n that needs at most
//   max_segments of them: bits depend on the sequence's own length alone.
//   span: max_segments = INT32_MAX, so that every segment is min_segment_tiles long.
struct DecodeSplit {
  int32_t min_segment_tiles = 4;
  int32_t max_segments = 0;
};

struct DecodeParams {
  // Queries, bf16. GQA: q [num_tokens, num_heads, head_dim]. MLA: q [num_tokens, num_heads, 512]
  // already multiplied by W_UK, and q_pe [num_tokens, num_heads, 64]. Strides in elements.
  const void* q = nullptr;
  const void* q_pe = nullptr;
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t q_pe_token_stride = 0;
  int64_t q_pe_head_stride = 0;

  PagedPlane plane[2];  // GQA: keys, values. MLA: latents (512), rotated shared keys (64).
  // Of quantised planes, f32. GQA: one a token and head, tokens of a head behind each other. MLA:
  // one for each 128 of a token's latents, in scales[0], behind the codes; behind them the rotated
  // keys: a token is one record of 512 codes, four scales and 64 bf16 or float16.
  PagedPlane scales[2];
  int64_t num_pages = 0;                // page ids are below this
  const int32_t* page_table = nullptr;  // [num_sequences, page_table_stride]
  int64_t page_table_stride = 0;
  const int32_t* kv_lengths = nullptr;    // [num_sequences], the queries' own keys included
  const int32_t* query_starts = nullptr;  // [num_sequences + 1], increasing

  void* out = nullptr;  // bf16 [num_tokens, num_heads, head_dim_v], strides in elements
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  float* lse = nullptr;  // natural log; [num_tokens, num_heads]; may be null
  float scale = 0;       // > 0; of the scores, before softmax

  int32_t num_sequences = 0;
  int32_t num_kv_heads = 0;   // MLA: 1
  int32_t group = 0;          // query heads of one kv head
  int32_t group_inverse = 0;  // ceil(2^kGroupInverseShift / group): a row's token without division
  int32_t max_query_tokens = 0;
  int32_t page_tokens = 0;

  // Plan and workspace.
  CacheCode code = CacheCode::kBf16;
  bool portable = false;    // kernels of sm80
  bool free_warps = false;  // kernels whose warps work alone
  DecodeSplit split;
  int32_t num_parts = 0;
  int32_t row_tiles = 0;          // kv head's rows (query tokens x group) / rows of the kernel
  bool merge_by_block = false;    // the second kernel: a block for each row, else a warp
  bool merge_inside = false;      // no second kernel: blocks of a sequence wait for each other
  DecodePart* parts = nullptr;    // [num_parts]
  int32_t* part_pages = nullptr;  // [num_parts, kDecodePartPages]
  DecodeMerge* merges = nullptr;  // [num_sequences], sparse: [num_lists]
  int32_t* prefix = nullptr;      // [2, the same + 1] scratch of Prepare
  // [num_sequences, row_tiles], where blocks merge themselves: those of a sequence whose partial
  // results are written; 0 or 2^31 between runs.
  uint32_t* arrivals = nullptr;
  // kv heads: sparse 1, a list has its own.
  // [slots, kv heads * row_tiles, rows, head_dim_v]: f32; of latents, by the kernels for sm_90,
  // float16 (PartialFormat).
  void* partial_out = nullptr;
  float* partial_ml = nullptr;  // [slots, kv heads * row_tiles, rows, 2] base (log2), sum

  // Sparse: list i visits listed[first_tile + j], j below visited_tokens[i] / 64, in increasing
  // order, and no others. Every head of every sequence is in one list. Null: all tiles.
  const DecodeList* lists = nullptr;        // [num_lists]
  const int32_t* visited_tokens = nullptr;  // [num_lists], multiples of 64
  const ListedTile* listed = nullptr;
  const uint64_t* masks = nullptr;
  int32_t num_lists = 0;

  // Queries, what is not quantised of the cache, and output: float16 where they are said to be
  // bf16.
  bool float16 = false;
};

}  // namespace fathom::kernels::cuda
