#pragma once
// How the KV cache of one layer group lies in its pages. Kernels see a base pointer, strides (all
// multiples of 16 bytes) and plane offsets; they never know which model it is.
//
// A page holds `page_tokens` consecutive tokens of one layer, plane by plane and in a plane head by
// head: attention reads one head at a time, and its tokens then follow each other in memory (with
// heads inside tokens half of what a core fetches is another head's). A layer's pages form one
// array [num_pages][page_bytes]; a sequence's page table row maps token t to page t / page_tokens.
#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace fathom::ops {

enum class PlaneKind : uint8_t {
  kK,      // keys            [num_kv_heads, page_tokens, head_dim]
  kV,      // values          [num_kv_heads, page_tokens, head_dim_v]
  kC,      // MLA latent      [page_tokens, kv_lora_rank], RMS-normed
  kKPe,    // MLA shared key  [page_tokens, rope_dim], rotated, always bf16 or f32
  kScale,  // quantisation scales of the plane before it, f32
  kIndex,  // sparse-attention index keys
};

// Whether keys are stored before or after rotation, and how pairs lie: (2i, 2i+1) or (i, i + d/2).
enum class RopeState : uint8_t { kNone, kRaw, kRotatedInterleaved, kRotatedHalves };

struct Plane {
  PlaneKind kind = PlaneKind::kK;
  DType dtype = DType::kBF16;
  int32_t num_heads = 1;
  int32_t dim = 0;           // elements a head a token
  int32_t offset_bytes = 0;  // of the plane in its page
  int32_t token_stride_bytes = 0;
  int32_t head_stride_bytes = 0;
};

enum class LayerGroup : uint8_t { kFull, kWindow, kIndex, kMtp };

struct CacheFormat {
  static constexpr int kMaxPlanes = 4;

  LayerGroup group = LayerGroup::kFull;
  int32_t num_layers = 0;
  int32_t page_tokens = 64;  // 16, 32, 64 or 128
  int32_t num_planes = 0;
  std::array<Plane, kMaxPlanes> planes = {};
  RopeState rope = RopeState::kRotatedHalves;
  uint32_t rope_table_id = 0;  // part of the prefix key: another table makes other keys
  int32_t page_bytes = 0;      // of one layer

  const Plane* Find(PlaneKind kind) const;
  int64_t BytesPerToken() const { return int64_t{page_bytes} / page_tokens * num_layers; }
  // Identifies everything that makes two caches interchangeable; part of the prefix key.
  uint64_t Fingerprint() const;
};

// GQA: k then v. MLA: c then k_pe. Checks page_tokens and that every stride is a multiple of 16.
Result<CacheFormat> MakeGqaFormat(int num_layers, int num_kv_heads, int head_dim, int head_dim_v,
                                  DType dtype, int page_tokens, RopeState rope);
Result<CacheFormat> MakeMlaFormat(int num_layers, int kv_lora_rank, int rope_dim, DType dtype,
                                  int page_tokens, RopeState rope);

// The memory behind one layer group: pages of all its layers.
struct CacheView {
  CacheFormat format;
  void* base = nullptr;  // [num_layers][num_pages][page_bytes]
  int64_t num_pages = 0;

  void* Layer(int layer) const {
    return static_cast<char*>(base) + int64_t{layer} * num_pages * format.page_bytes;
  }
};

}  // namespace fathom::ops
