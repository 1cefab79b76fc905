#pragma once
// Llama (arXiv:2407.21783) and Qwen2 (arXiv:2407.10671): grouped-query attention with rotary
// embeddings and a SwiGLU MLP. Qwen2 adds biases to the query, key and value projections.
#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "ops/attention.h"

namespace fathom::model {

class Llama final : public Decoder {
 public:
  // Everything but the weights (Decoder::LoadWeights).
  static Result<std::unique_ptr<Llama>> Create(const ModelConfig& config,
                                               const DecoderOptions& options, std::string name);

 private:
  Llama(const ModelConfig& config, const DecoderOptions& options, std::string name);

  Status LoadLayer(WeightStore& store, int layer) override;
  size_t AttentionBytes(const ops::StepBucket& bucket) const override;
  size_t MlpBytes(const ops::StepBucket& bucket) const override;
  Status Attention(int layer, const TensorView& hidden, const TensorView& output,
                   Step& step) override;
  Status Mlp(int layer, const TensorView& hidden, const TensorView& output, Step& step) override;

  int64_t QueryColumns() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
  int64_t KeyColumns() const { return int64_t{shape_.num_kv_heads} * shape_.head_dim; }

  struct Layer {
    const PackedWeight* qkv = nullptr;  // [query + 2 key columns, hidden_size]
    const float* qkv_bias = nullptr;    // Qwen2
    const PackedWeight* out = nullptr;  // [hidden_size, query columns]
    MlpWeights mlp;
  };

  ops::attention::GqaShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace fathom::model
