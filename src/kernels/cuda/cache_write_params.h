#pragma once
// Parameters of the kernel that rotates a step's queries and keys and appends keys and values to
// their pages. POD, no CUDA headers. Pointers are device memory.
#include <cstdint>

#include "kernels/cuda/cache_code.h"
#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda {

// Which elements of a head are rotated together: (2i, 2i + 1) or (i, i + rope_dim / 2).
enum class RopePairs : int32_t { kInterleaved, kHalves };

// Rows [num_tokens, num_heads, dim] bf16 or float16 on their way into a plane. Strides in elements,
// multiples of 8.
struct CacheRows {
  const void* rows = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;                    // a multiple of 16, at most 512
  bool rotate = false;                // its first rope_dim elements
  const float* norm = nullptr;        // [dim] weights of an RMS norm before all else, or null
  CacheCode code = CacheCode::kBf16;  // kBf16: as the rows are
  int32_t scale_group = 0;            // quantised: dim, or 128
  PagedPlane plane;                   // null base: written back to `rows` (queries)
  PagedPlane scales;                  // quantised: f32 [dim / scale_group] behind each other
};

inline constexpr int kMaxCacheRows = 3;

// GQA: queries, keys, values. MLA: rotated parts of the queries, latents (normed), rotated key.
struct CacheWriteParams {
  CacheRows rows[kMaxCacheRows];
  int32_t num_rows = 0;  // of them in use
  int32_t num_tokens = 0;
  int32_t num_sequences = 0;
  int32_t page_tokens = 0;
  float norm_eps = 0;
  bool float16 = false;  // rows, and what is not quantised: float16 in place of bf16

  const int32_t* live_tokens = nullptr;   // [1], or null: all num_tokens
  const int32_t* positions = nullptr;     // [num_tokens]
  const int32_t* query_starts = nullptr;  // [num_sequences + 1]
  const int32_t* page_table = nullptr;    // [num_sequences, page_table_stride]
  int64_t page_table_stride = 0;
  int64_t num_pages = 0;

  // Cosines of rope_dim / 2 frequencies, then sines, one row a position. Null: no rotation.
  const float* const* rope_tables = nullptr;
  const int32_t* rope_rows = nullptr;  // [num_sequences] which table; null: the first
  RopePairs pairs = RopePairs::kHalves;
  int32_t rope_dim = 0;  // a multiple of 16, at most 256
};

}  // namespace fathom::kernels::cuda
