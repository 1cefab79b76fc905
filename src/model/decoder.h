#pragma once
// What every supported architecture has in common: a pre-norm decoder-only transformer. A model
// adds how a layer attends and what its MLP is; deepseek.h and llama.h do.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cost/op_cost.h"
#include "model/config.h"
#include "model/model.h"
#include "model/weight_store.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/rope.h"

namespace fathom::model {

struct DecoderOptions {
  ops::Precision precision = ops::Precision::kBF16;
  DType kv_dtype = DType::kBF16;
  ops::Gemm gemm = ops::Gemm::kNative;
  int page_tokens = 64;
  bool mtp = false;     // load the multi-token-prediction layer too (DeepSeek-V3)
  int num_threads = 1;  // of the pool that forward passes will run on
  // Dynamic NTK: lengths are rounded up to a multiple of this, so that few tables serve all.
  int64_t rope_length_step = 1024;
};

// The sum of what Arena::Tensor takes for the same shapes.
class ArenaBytes {
 public:
  ArenaBytes& F32(int64_t rows, int64_t cols) {
    bytes_ += Arena::Align(static_cast<size_t>(rows * cols) * sizeof(float));
    return *this;
  }
  ArenaBytes& Bytes(size_t bytes) {
    bytes_ += Arena::Align(bytes);
    return *this;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// Columns [first, first + count) of a matrix, as a view.
TensorView Columns(const TensorView& matrix, int64_t first, int64_t count);
// A matrix [rows, heads * dim] as [rows, heads, dim].
TensorView Heads(const TensorView& matrix, int64_t heads, int64_t dim);

// What a role's tokens cost attention, in the cost library's terms.
cost::AttentionShape WorkShape(const ops::RoleWork& work);
void SetCost(ops::Context::Span& span, const cost::Cost& cost);

class Decoder : public Model {
 public:
  // Counts the weights with a planning store, or reads them with a loading one.
  Status LoadWeights(WeightStore& store);
  // Takes over what LoadWeights filled, makes the RoPE tables and fixes the fingerprint: from here
  // on ChooseRope and Forward may be called. Everything else needs no weights.
  Status Adopt(std::unique_ptr<WeightStore> store);

  // Sees what each op wrote, in the order of the pass, as it is enqueued (for verification). The
  // tensor is device memory that later ops reuse: a probe that keeps it enqueues a copy.
  using Probe =
      std::function<void(event::Op op, int layer, const TensorView& output, ops::Context& context)>;
  void set_probe(Probe probe) { probe_ = std::move(probe); }

  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }
  // Of the table that every sequence uses, and with dynamic NTK of the longest other one.
  size_t rope_table_bytes() const;

  std::string_view name() const override { return name_; }
  int vocab_size() const override { return config_.vocab_size; }
  int max_context_tokens() const override { return static_cast<int>(config_.max_context); }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::span<const ops::CacheFormat> cache_formats() const override { return formats_; }
  Result<RopeChoice> ChooseRope(int64_t max_tokens) override;
  StepPlan Plan(const ops::StepBucket& bucket) const override;
  Status Forward(const StepPlan& plan, const ops::StepInputs& inputs,
                 std::span<const ops::CacheView> caches, ops::Context& context,
                 TensorView logits) override;
  // Forward that keeps the states that the head reads: `hidden` [num_tokens, hidden_size] f32 in
  // device memory, after the final norm.
  Status ForwardHidden(const StepPlan& plan, const ops::StepInputs& inputs,
                       std::span<const ops::CacheView> caches, ops::Context& context,
                       const TensorView& hidden, const TensorView& logits);

 protected:
  using PackedWeight = ops::linear::PackedWeight;

  // One step on its way through the layers.
  struct Step {
    const ops::StepInputs& inputs;
    std::span<const ops::CacheView> caches;
    ops::Context& context;
    const int32_t* live_tokens;  // device memory

    int64_t num_tokens() const { return inputs.bucket.num_tokens; }
  };

  Decoder(ModelConfig config, const DecoderOptions& options, std::string name);

  virtual Status LoadLayer(WeightStore& store, int layer) = 0;
  // What follows the layers.
  virtual Status LoadRest(WeightStore& /*store*/) { return {}; }
  // Arena bytes that Attention and Mlp take, at most, for a bucket.
  virtual size_t AttentionBytes(const ops::StepBucket& bucket) const = 0;
  virtual size_t MlpBytes(const ops::StepBucket& bucket) const = 0;
  // The two halves of a layer, without the residual connection. Both read the normed
  // `hidden` [num_tokens, hidden_size] and write `output` of the same shape.
  virtual Status Attention(int layer, const TensorView& hidden, const TensorView& output,
                           Step& step) = 0;
  virtual Status Mlp(int layer, const TensorView& hidden, const TensorView& output, Step& step) = 0;

  // Tensors of the checkpoint that this model leaves out on purpose.
  virtual bool IsIgnorable(std::string_view /*name*/) const { return false; }

  void Show(event::Op op, int layer, const TensorView& output, Step& step) const {
    if (probe_) probe_(op, layer, output, step.context);
  }
  // A step within its plan, on a pool that it was planned for.
  void CheckPlan(const StepPlan& plan, const ops::StepInputs& inputs,
                 const ops::Context& context) const;
  // The layers and the final norm: writes `hidden` [num_tokens, hidden_size].
  Status Layers(const TensorView& hidden, Step& step);
  // `logits` [num_logits, vocab_size] of the rows of `hidden` that StepInputs names.
  Status Head(const PackedWeight& head, const TensorView& hidden, const TensorView& logits,
              Step& step);
  size_t HeadBytes(const ops::StepBucket& bucket) const;

  // output = norm(input), or with a residual input += residual, then output = norm(input).
  Status Norm(const float* weight, const TensorView& input, const TensorView& residual,
              const TensorView& output, int layer, Step& step);
  // output = input W^T + bias for the live tokens; Project records it as an op of its own.
  Status Linear(const PackedWeight& weight, const TensorView& input, const TensorView& output,
                Step& step, const float* bias = nullptr);
  Status Project(event::Op op, int layer, const PackedWeight& weight, const TensorView& input,
                 const TensorView& output, Step& step, const float* bias = nullptr);
  static cost::Cost LinearCost(const PackedWeight& weight, const Step& step);
  size_t LinearBytes(const ops::StepBucket& bucket, int64_t rows, int64_t cols) const;
  // down(silu(gate x) * up x)
  Status GatedMlp(event::Op op, int layer, const MlpWeights& weights, const TensorView& input,
                  const TensorView& output, Step& step);
  ops::mlp::Plan GatedMlpPlan(const ops::StepBucket& bucket, int64_t intermediate) const;

  ModelConfig config_;
  DecoderOptions options_;
  std::string name_;
  std::vector<ops::CacheFormat> formats_;
  ops::RopeTables rope_;

 private:
  struct LayerNorms {
    const float* input = nullptr;           // before attention
    const float* post_attention = nullptr;  // before the MLP
  };

  std::vector<LayerNorms> norms_;
  std::unique_ptr<WeightStore> store_;
  TensorView embedding_;                // [vocab_size, hidden_size]
  const float* final_norm_ = nullptr;   // [hidden_size]
  const PackedWeight* head_ = nullptr;  // [vocab_size, hidden_size]
  // Positions of table 0: dynamic NTK leaves longer sequences to tables of their own.
  int64_t FirstTablePositions() const;

  std::map<int64_t, int32_t> rope_rows_;  // dynamic NTK: length -> table
  uint64_t fingerprint_ = 0;
  Probe probe_;
};

}  // namespace fathom::model
