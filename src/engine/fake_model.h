#pragma once
// A model for tests: no arithmetic, but its state goes through the KV pages, so a wrong page,
// position, role, RoPE row or token gives other logits. Runs on any host-executed device.
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "model/model.h"

namespace fathom::engine {

class FakeModel final : public model::Model {
 public:
  static constexpr int32_t kVocab = 67;

  FakeModel(int32_t page_tokens, int32_t max_context, int32_t num_groups = 1,
            int32_t vocab_size = kVocab)
      : max_context_(max_context), vocab_size_(vocab_size) {
    for (int32_t i = 0; i < num_groups; ++i) {
      formats_.push_back(*ops::MakeGqaFormat(1, 1, 4, 4, DType::kF32, page_tokens,
                                             ops::RopeState::kRotatedHalves));
    }
  }

  // Forward fails from this step on; 0: never.
  void FailAtStep(uint64_t step) { fail_at_ = step; }
  // Logits are NaN for sequences whose last token is this one.
  void PoisonAfter(int32_t token) { poison_after_ = token; }
  // Tables that depend on the length, as dynamic NTK has them.
  void UseDynamicRope() { dynamic_rope_ = true; }
  uint64_t prompt_tokens_computed() const { return prompt_tokens_; }

  std::string_view name() const override { return "fake"; }
  int vocab_size() const override { return vocab_size_; }
  int max_context_tokens() const override { return max_context_; }
  uint64_t fingerprint() const override { return 42; }
  std::span<const ops::CacheFormat> cache_formats() const override { return formats_; }
  Result<model::RopeChoice> ChooseRope(int64_t max_tokens) override {
    const auto row = static_cast<int32_t>(dynamic_rope_ ? max_tokens / 64 : 0);
    return model::RopeChoice{.row = row, .key = static_cast<uint64_t>(row)};
  }
  model::StepPlan Plan(const ops::StepBucket& bucket) const override {
    return {.bucket = bucket,
            .workspace_bytes = static_cast<size_t>(bucket.num_tokens) * sizeof(uint64_t) + 64};
  }

  Status Forward(const model::StepPlan& plan, const ops::StepInputs& inputs,
                 std::span<const ops::CacheView> caches, ops::Context& context,
                 TensorView logits) override {
    if (fail_at_ != 0 && context.step_id >= fail_at_) {
      return Err(Code::kInternal, "injected failure at step {}", context.step_id);
    }
    auto* states = static_cast<uint64_t*>(
        context.arena.Allocate(static_cast<size_t>(plan.bucket.num_tokens) * sizeof(uint64_t)));
    const size_t group = caches.size() - 1;
    context.device.Execute(
        context.stream, [this, inputs, cache = caches[group], group, states,
                         out = logits.As<float>()] { Compute(inputs, cache, group, states, out); });
    return {};
  }

 private:
  static uint64_t Mix(uint64_t state, uint64_t value) {
    state = (state ^ value) * 0x9e3779b97f4a7c15u;
    return state ^ (state >> 31);
  }

  void Compute(const ops::StepInputs& in, const ops::CacheView& cache, size_t group,
               uint64_t* states, float* out) {
    const int32_t tokens = in.live_counts[0];
    const int32_t sequences = in.live_counts[1];
    const int32_t page_tokens = cache.format.page_tokens;
    FATHOM_CHECK(tokens == in.bucket.num_tokens && in.query_starts[sequences] == tokens);
    int32_t poisoned = 0;
    for (int32_t i = 0; i < sequences; ++i) {
      const int32_t* table = in.page_tables[group] + int64_t{i} * in.page_table_stride[group];
      const auto at = [&](int32_t position) {
        const int32_t page = table[position / page_tokens];
        FATHOM_CHECK(page >= 0 && page < cache.num_pages);
        const ops::Plane& plane = *cache.format.Find(ops::PlaneKind::kK);
        return static_cast<char*>(cache.base) + int64_t{page} * cache.format.page_bytes +
               plane.offset_bytes + int64_t{position % page_tokens} * plane.token_stride_bytes;
      };
      const int32_t begin = in.query_starts[i];
      const int32_t end = in.query_starts[i + 1];
      FATHOM_CHECK(end > begin && in.positions[end - 1] + 1 == in.kv_lengths[i]);
      uint64_t state = Mix(7, static_cast<uint64_t>(in.rope_rows[i]));
      const int32_t first = in.positions[begin];
      if (first > 0) std::memcpy(&state, at(first - 1), sizeof(state));
      for (int32_t t = begin; t < end; ++t) {
        const int32_t position = in.positions[t];
        FATHOM_CHECK(position == first + t - begin);
        const int32_t id =
            in.token_ids[t] >= 0 ? in.token_ids[t] : in.sampled[-in.token_ids[t] - 1];
        FATHOM_CHECK(id >= 0 && id < vocab_size_);
        state = Mix(state, static_cast<uint64_t>(id));
        state =
            Mix(state, static_cast<uint64_t>(position) * 4 + static_cast<uint64_t>(in.roles[i]));
        std::memcpy(at(position), &state, sizeof(state));
        states[t] = id == poison_after_ ? 0 : state;
        poisoned += id == poison_after_;
        if (in.roles[i] == ops::Role::kPrompt) ++prompt_tokens_;
      }
    }
    for (int32_t row = 0; row < in.live_counts[2]; ++row) {
      const uint64_t state = states[in.logits_tokens[row]];
      for (int32_t id = 0; id < vocab_size_; ++id) {
        const uint64_t bits = Mix(state, 1000 + static_cast<uint64_t>(id));
        out[row * vocab_size_ + id] = static_cast<float>(bits >> 40) / (1 << 21) - 4;
      }
      if (poisoned > 0 && state == 0)
        out[row * vocab_size_] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  std::vector<ops::CacheFormat> formats_;
  int32_t max_context_;
  int32_t vocab_size_;
  uint64_t fail_at_ = 0;
  int32_t poison_after_ = -1;
  bool dynamic_rope_ = false;
  std::atomic<uint64_t> prompt_tokens_{0};
};

}  // namespace fathom::engine
