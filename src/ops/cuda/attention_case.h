#pragma once
// One attention problem as the benchmark, --explain and the planners see it: heads, dimensions,
// lengths, mask, cache.
#include <string>

#include "cost/attention.h"
#include "ops/cuda/decode_attention.h"
#include "ops/cuda/mla_prefill.h"
#include "ops/cuda/prefill_attention.h"

namespace fathom::ops {

struct AttentionCase {
  bool decode = true;  // else prefill
  cost::AttentionCall call;
  int32_t page_tokens = 64;  // 0: contiguous keys and values (prefill)
  DType dtype = DType::kBF16;

  // As in benchmark results: "gqa 32/8h d128 1 x 8k", "mla 16h 32 x 8k", "32/8h d128 causal 16 x
  // 1024", "32/8h d128 causal 512 of 65536", "gqa 32/8h d128 1 x 64k + 63 x 1k"; in float16 "gqa
  // 32/8h d128 f16 1 x 8k", "mla 16h int8 f16 1 x 8k", "32/8h d128 causal 16 x 1024, float16".
  std::string Name() const;

  DecodeAttentionShape DecodeShape() const;
  PrefillAttentionShape PrefillShape() const;
  ops::MlaPrefillShape LatentPrefillShape() const;  // where keys are expanded
};

// "32/8" and "128", "192/128" or "mla" (decode: 576/512, one kv head; prefill: 192/128, expanded
// from latents).
Status ParseHeads(const std::string& text, AttentionCase* out);
Status ParseDims(const std::string& text, AttentionCase* out);
// "8192", "32x8k", "1x64k,63x1k": [COUNTx]KEYS, k = 1024. `queries`: of each sequence; 0: 1 for
// decode, all for prefill.
Status ParseLengths(const std::string& text, int64_t queries, AttentionCase* out);

}  // namespace fathom::ops
