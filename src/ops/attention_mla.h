#pragma once
// The two paths of MLA on the host (ops/attention.h chooses by role).
#include <cstddef>

#include "ops/attention_host.h"
#include "ops/paged_span.h"
#include "ops/panels.h"

namespace fathom::ops::attention {

// What one call works on; copied into the work that a device may run late.
struct MlaCall {
  MlaShape shape;
  MlaArgs args;
  StepInputs inputs;
  const MlaWeights* weights = nullptr;

  Operands operands() const {
    return {shape.precision, args.cache.format.Find(PlaneKind::kC)->dtype};
  }
  PageReader Reader(const Item& item) const {
    const auto group = static_cast<size_t>(args.page_table);
    return {args.cache, args.layer,
            inputs.page_tables[group] + item.sequence * inputs.page_table_stride[group]};
  }
  const float* Query(int64_t token, int64_t head) const {
    return host::Row(args.q, token) + head * args.q.stride[1];
  }
  float* Out(int64_t token, int64_t head) const {
    return host::Row(args.out, token) + head * args.out.stride[1];
  }
};

// Prompt tokens: keys and values of a span are expanded from its latents for one head and serve
// all of the item's queries, at most kMaxItemTokens.
class MlaPrompt {
 public:
  MlaPrompt(const MlaShape& shape, const CacheFormat& format, const StepBucket& bucket,
            int num_threads, std::byte* memory);
  size_t bytes() const { return bytes_; }
  void Run(const host::Runtime& runtime, const MlaCall& call) const;

 private:
  struct Scratch;
  Scratch Carve(Carver& carver) const;
  void ExpandSpan(const kernels::cpu::KernelTable& cpu, const MlaCall& call, const Item& item,
                  int32_t span, const Scratch& scratch) const;
  void Attend(const kernels::cpu::KernelTable& cpu, const MlaCall& call, const Item& item,
              int32_t span, const Scratch& scratch, const State& out) const;

  MlaShape shape_;
  Operands operands_;
  DType expanded_;  // type of panels made by expansion
  int num_threads_;
  int32_t tokens_per_item_;
  ItemMemory memory_;
  size_t bytes_ = 0;
};

// Generated tokens: queries are taken into the latent space (absorbed), so that the cache is read
// as it is; the result comes back through W_UV. Works in windows of tokens to bound its memory.
class MlaGenerated {
 public:
  MlaGenerated(const MlaShape& shape, const CacheFormat& format, const StepBucket& bucket,
               int num_threads, std::byte* memory);
  size_t bytes() const { return bytes_; }
  void Run(const host::Runtime& runtime, const MlaCall& call) const;

 private:
  void RunWindow(const host::Runtime& runtime, const MlaCall& call, const Item* items,
                 int64_t num_items) const;

  MlaShape shape_;
  PagedSpan span_;
  int num_threads_;
  int32_t window_tokens_;
  int32_t tokens_per_item_;
  int32_t* tokens_ = nullptr;    // [window] tokens of the step
  std::byte* q_nope_ = nullptr;  // [window, heads, EvenUp(nope_dim)] bf16, bf16 products only
  float* q_ = nullptr;           // [window, heads, kv_lora_rank + rope_dim]
  std::byte* o_ = nullptr;       // [window, heads, kv_lora_rank] bf16 or f32
  float* out_ = nullptr;         // [window, heads * v_dim]
  ItemMemory memory_;
  size_t bytes_ = 0;
};

}  // namespace fathom::ops::attention
