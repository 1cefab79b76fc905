#include "ops/cuda/cache_write.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

Status CheckPlane(const char* what, const cuda::PagedPlane& plane, int64_t alignment) {
  if (plane.base == nullptr || reinterpret_cast<uintptr_t>(plane.base) % alignment != 0) {
    return Err(Code::kInvalidArgument, "cache write: {} at {}: expected {}-byte aligned memory",
               what, plane.base, alignment);
  }
  for (const int64_t stride :
       {plane.page_stride_bytes, plane.token_stride_bytes, plane.head_stride_bytes}) {
    if (stride <= 0 || stride % alignment != 0) {
      return Err(Code::kInvalidArgument,
                 "cache write: {}: stride of {} bytes: expected a positive multiple of {}", what,
                 stride, alignment);
    }
  }
  return {};
}

Status CheckRows(const cuda::CacheWriteParams& params, const cuda::CacheRows& rows) {
  if (rows.num_heads < 1 || rows.dim < 16 || rows.dim > 512 || rows.dim % 16 != 0) {
    return Err(Code::kInvalidArgument,
               "cache write: {} heads of {} elements: expected at least one, and 16 to 512 "
               "elements in multiples of 16",
               rows.num_heads, rows.dim);
  }
  if (rows.rows == nullptr || reinterpret_cast<uintptr_t>(rows.rows) % 16 != 0 ||
      rows.token_stride % 8 != 0 || rows.head_stride % 8 != 0) {
    return Err(Code::kInvalidArgument,
               "cache write: rows at {}, strides {} and {}: expected 16-byte aligned memory and "
               "multiples of 8 elements",
               rows.rows, rows.token_stride, rows.head_stride);
  }
  if (rows.rotate && (params.rope_dim > rows.dim || params.rope_dim > 256 ||
                      params.rope_dim % 16 != 0 || params.rope_dim < 16)) {
    return Err(Code::kInvalidArgument,
               "cache write: {} rotated elements of {}: expected 16 to 256 in multiples of 16, no "
               "more than a head has",
               params.rope_dim, rows.dim);
  }
  if (rows.plane.base == nullptr) return {};  // written back
  const bool quantised = rows.code != cuda::CacheCode::kBf16;
  FATHOM_TRY(CheckPlane("plane", rows.plane, quantised ? 8 : 16));
  if (!quantised) return {};
  FATHOM_TRY(CheckPlane("scales", rows.scales, 4));
  const int group = rows.scale_group;
  const bool whole_row = group == rows.dim && group <= 256 && (group & (group - 1)) == 0;
  const bool partly_rotated = rows.rotate && params.rope_dim < rows.dim;
  if (!whole_row && !(group == 128 && rows.dim % 128 == 0 && !partly_rotated)) {
    return Err(Code::kUnsupported,
               "cache write: a scale for each {} of {} elements: expected one for a row of 16, 32, "
               "64, 128 or 256, or one for each 128 of a row rotated as a whole or not at all",
               group, rows.dim);
  }
  return {};
}

}  // namespace

Status CheckCacheWriteParams(const cuda::CacheWriteParams& params, const GpuLimits& gpu) {
  if (gpu.compute_major < 8) {
    return Err(Code::kUnsupported,
               "cache write: needs compute capability 8.0 or later, this GPU has {}.{}",
               gpu.compute_major, gpu.compute_minor);
  }
  if (params.num_rows < 1 || params.num_rows > cuda::kMaxCacheRows || params.num_tokens < 1 ||
      params.num_sequences < 1) {
    return Err(Code::kInvalidArgument,
               "cache write: {} kinds of rows, {} tokens, {} sequences: expected 1 to {}, and at "
               "least one of each",
               params.num_rows, params.num_tokens, params.num_sequences, cuda::kMaxCacheRows);
  }
  if (params.page_tokens != 16 && params.page_tokens != 32 && params.page_tokens != 64 &&
      params.page_tokens != 128) {
    return Err(Code::kInvalidArgument, "cache write: page size {}: expected 16, 32, 64 or 128",
               params.page_tokens);
  }
  if (params.positions == nullptr || params.query_starts == nullptr ||
      params.page_table == nullptr) {
    return Err(Code::kInvalidArgument,
               "cache write: positions, query starts and a page table are needed");
  }
  for (int i = 0; i < params.num_rows; ++i) FATHOM_TRY(CheckRows(params, params.rows[i]));
  return {};
}

}  // namespace fathom::ops
