#pragma once
// DeepSeek-V2 (arXiv:2405.04434) and DeepSeek-V3/R1 (arXiv:2412.19437): multi-head latent attention
// and a mixture of experts with shared experts. Names of quantities follow the papers.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "ops/attention.h"
#include "ops/moe.h"

namespace fathom::model {

class Deepseek final : public Decoder {
 public:
  // Everything but the weights (Decoder::LoadWeights).
  static Result<std::unique_ptr<Deepseek>> Create(const ModelConfig& config,
                                                  const DecoderOptions& options, std::string name);

  // Multi-token prediction (V3, section 2.2), when DecoderOptions::mtp asked for it: the logits of
  // the token after the next, from the final hidden state of each token and the token that followed
  // it. One more layer with its own cache group, LayerGroup::kMtp, which is cache_formats()[1].
  //
  // The step is the main model's moved by one token: token_ids are the next tokens; positions,
  // kv_lengths and page tables are those of the tokens that `hidden` [num_tokens, hidden_size]
  // belongs to (ForwardHidden). A sequence's last state waits until its next token is known.
  StepPlan DraftPlan(const ops::StepBucket& bucket) const;
  Status Draft(const StepPlan& plan, const ops::StepInputs& inputs,
               std::span<const ops::CacheView> caches, ops::Context& context,
               const TensorView& hidden, const TensorView& logits);

 private:
  Deepseek(const ModelConfig& config, const DecoderOptions& options, std::string name);

  Status LoadLayer(WeightStore& store, int layer) override;
  Status LoadRest(WeightStore& store) override;
  size_t AttentionBytes(const ops::StepBucket& bucket) const override;
  size_t MlpBytes(const ops::StepBucket& bucket) const override;
  Status Attention(int layer, const TensorView& hidden, const TensorView& output,
                   Step& step) override;
  Status Mlp(int layer, const TensorView& hidden, const TensorView& output, Step& step) override;
  bool IsIgnorable(std::string_view name) const override;

  struct AttentionWeights {
    // One product of h gives the query's latent (or, without a query LoRA, the queries
    // themselves), the key-value latent and the shared rotary key.
    const PackedWeight* qkv_a = nullptr;  // [q_columns + kv_lora_rank + rope, hidden_size]
    const float* q_norm = nullptr;        // [q_lora_rank]
    const PackedWeight* q_b = nullptr;    // [heads * (nope + rope), q_lora_rank]
    const float* kv_norm = nullptr;       // [kv_lora_rank]
    const ops::attention::MlaWeights* kv_b = nullptr;  // W_UK and W_UV of each head
    const PackedWeight* out = nullptr;                 // [hidden_size, heads * v]
  };
  struct MoeWeights {
    const PackedWeight* gate = nullptr;  // [num_experts, hidden_size], multiplied in f32
    const float* gate_bias = nullptr;    // [num_experts], noaux_tc's correction
    MlpWeights shared;
    const ops::moe::ExpertWeights* experts = nullptr;  // [num_experts]
  };
  struct Layer {
    AttentionWeights attention;
    MlpWeights mlp;  // dense layers
    MoeWeights moe;  // the others
  };

  struct Mtp {
    TensorView embedding;                   // [vocab_size, hidden_size]
    const float* embedding_norm = nullptr;  // enorm
    const float* hidden_norm = nullptr;     // hnorm
    const PackedWeight* combine = nullptr;  // eh_proj [hidden_size, 2 * hidden_size]
    const float* input_norm = nullptr;
    const float* post_attention_norm = nullptr;
    Layer layer;
    const float* head_norm = nullptr;
    const PackedWeight* head = nullptr;  // [vocab_size, hidden_size]
  };

  // With a group of its own (the MTP layer's), everything counts there.
  Status LoadAttention(WeightStore& store, WeightGroup group, const std::string& prefix,
                       AttentionWeights& weights) const;
  Status LoadMlp(WeightStore& store, std::optional<WeightGroup> group, int index,
                 const std::string& prefix, Layer& layer) const;
  Status LatentAttention(int layer, const AttentionWeights& weights, int cache_group,
                         int cache_layer, const TensorView& hidden, const TensorView& output,
                         Step& step);
  Status LayerMlp(int index, const Layer& layer, const TensorView& hidden, const TensorView& output,
                  Step& step);
  Status MixtureOfExperts(int layer, const MoeWeights& weights, const TensorView& hidden,
                          const TensorView& output, Step& step);

  const MlaConfig& mla() const { return *config_.mla; }
  const MoeConfig& moe() const { return *config_.moe; }
  int64_t QueryColumns() const { return int64_t{config_.num_heads} * mla().qk_head_dim(); }
  // Columns of the first product that belong to the query.
  int64_t QueryLatentColumns() const {
    return mla().q_lora_rank > 0 ? mla().q_lora_rank : QueryColumns();
  }
  int64_t KvColumns() const { return int64_t{mla().kv_lora_rank} + mla().qk_rope_head_dim; }
  int64_t ValueColumns() const { return int64_t{config_.num_heads} * mla().v_head_dim; }
  int64_t SharedIntermediate() const {
    return int64_t{moe().num_shared_experts} * moe().intermediate_size;
  }

  ops::attention::MlaShape shape_;
  ops::moe::ExpertsShape experts_shape_;
  std::vector<Layer> layers_;
  std::unique_ptr<Mtp> mtp_;
};

}  // namespace fathom::model
