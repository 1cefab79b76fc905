#include "ops/cache_format.h"

#include <string_view>

#include "base/strings.h"

namespace fathom::ops {
namespace {

constexpr int kStrideAlignment = 16;

Status Append(CacheFormat& format, PlaneKind kind, DType dtype, int num_heads, int dim) {
  Plane plane{.kind = kind, .dtype = dtype, .num_heads = num_heads, .dim = dim};
  plane.token_stride_bytes = dim * SizeOf(dtype);
  plane.head_stride_bytes = format.page_tokens * plane.token_stride_bytes;
  plane.offset_bytes = format.page_bytes;
  if (num_heads < 1 || dim < 1 || plane.token_stride_bytes % kStrideAlignment != 0) {
    return Err(Code::kUnsupported,
               "KV cache plane of {} heads x {} x {}: a head's bytes must be a positive multiple "
               "of {}",
               num_heads, dim, NameOf(dtype), kStrideAlignment);
  }
  format.page_bytes += num_heads * plane.head_stride_bytes;
  format.planes[static_cast<size_t>(format.num_planes++)] = plane;
  return {};
}

Result<CacheFormat> Start(int num_layers, int page_tokens, RopeState rope) {
  if (page_tokens != 16 && page_tokens != 32 && page_tokens != 64 && page_tokens != 128) {
    return Err(Code::kInvalidArgument, "page size {}: expected 16, 32, 64 or 128 tokens",
               page_tokens);
  }
  CacheFormat format;
  format.num_layers = num_layers;
  format.page_tokens = page_tokens;
  format.rope = rope;
  return format;
}

}  // namespace

const Plane* CacheFormat::Find(PlaneKind kind) const {
  for (int i = 0; i < num_planes; ++i) {
    if (planes[static_cast<size_t>(i)].kind == kind) return &planes[static_cast<size_t>(i)];
  }
  return nullptr;
}

uint64_t CacheFormat::Fingerprint() const {
  std::string text = fmt::format("{}/{}/{}/{}/{}", static_cast<int>(group), num_layers, page_tokens,
                                 static_cast<int>(rope), rope_table_id);
  for (int i = 0; i < num_planes; ++i) {
    const Plane& p = planes[static_cast<size_t>(i)];
    text += fmt::format("/{}:{}:{}:{}:{}:{}", static_cast<int>(p.kind), NameOf(p.dtype),
                        p.num_heads, p.dim, p.token_stride_bytes, p.head_stride_bytes);
  }
  return Hash64(text);
}

Result<CacheFormat> MakeGqaFormat(int num_layers, int num_kv_heads, int head_dim, int head_dim_v,
                                  DType dtype, int page_tokens, RopeState rope) {
  FATHOM_ASSIGN_OR_RETURN(CacheFormat format, Start(num_layers, page_tokens, rope));
  FATHOM_TRY(Append(format, PlaneKind::kK, dtype, num_kv_heads, head_dim));
  FATHOM_TRY(Append(format, PlaneKind::kV, dtype, num_kv_heads, head_dim_v));
  return format;
}

Result<CacheFormat> MakeMlaFormat(int num_layers, int kv_lora_rank, int rope_dim, DType dtype,
                                  int page_tokens, RopeState rope) {
  FATHOM_ASSIGN_OR_RETURN(CacheFormat format, Start(num_layers, page_tokens, rope));
  FATHOM_TRY(Append(format, PlaneKind::kC, dtype, 1, kv_lora_rank));
  FATHOM_TRY(Append(format, PlaneKind::kKPe, dtype, 1, rope_dim));
  return format;
}

}  // namespace fathom::ops
