#include "model/decoder.h"

#include <algorithm>

#include "base/strings.h"
#include "cost/op_cost.h"
#include "model/rope_scaling.h"
#include "ops/embed.h"
#include "ops/norm.h"

namespace fathom::model {

using event::Op;

TensorView Columns(const TensorView& matrix, int64_t first, int64_t count) {
  FATHOM_CHECK(matrix.rank == 2 && first + count <= matrix.shape[1]);
  TensorView view = matrix;
  view.data = static_cast<char*>(matrix.data) + first * SizeOf(matrix.dtype);
  view.shape[1] = count;
  return view;
}

TensorView Heads(const TensorView& matrix, int64_t heads, int64_t dim) {
  FATHOM_CHECK(matrix.rank == 2 && matrix.shape[1] == heads * dim);
  TensorView view = matrix;
  view.rank = 3;
  view.shape = {matrix.shape[0], heads, dim};
  view.stride = {matrix.stride[0], dim, 1};
  return view;
}

cost::AttentionShape WorkShape(const ops::RoleWork& work) {
  return {.query_tokens = static_cast<double>(work.query_tokens),
          .kv_tokens = static_cast<double>(work.kv_tokens),
          .pairs = static_cast<double>(work.pairs)};
}

void SetCost(ops::Context::Span& span, const cost::Cost& cost) {
  span.Cost(static_cast<uint64_t>(cost.bytes), static_cast<uint64_t>(cost.flops));
}

Decoder::Decoder(ModelConfig config, const DecoderOptions& options, std::string name)
    : config_(std::move(config)), options_(options), name_(std::move(name)) {}

int64_t Decoder::FirstTablePositions() const {
  return config_.rope.scaling == ops::RopeScaling::kDynamic ? config_.rope.original_positions
                                                            : config_.max_context;
}

size_t Decoder::rope_table_bytes() const {
  size_t bytes = ops::RopeTables::BytesFor(config_.rope.dim, FirstTablePositions());
  if (config_.rope.scaling == ops::RopeScaling::kDynamic) {
    bytes += ops::RopeTables::BytesFor(config_.rope.dim, config_.max_context);
  }
  return bytes;
}

Result<RopeChoice> Decoder::ChooseRope(int64_t max_tokens) {
  if (max_tokens > config_.max_context) {
    return Err(Code::kInvalidArgument, "a sequence of {} tokens exceeds the context of {} tokens",
               max_tokens, config_.max_context);
  }
  const bool dynamic = config_.rope.scaling == ops::RopeScaling::kDynamic;
  if (!dynamic || max_tokens <= config_.rope.original_positions) return RopeChoice{};
  const int64_t step = options_.rope_length_step;
  const int64_t length = std::min((max_tokens + step - 1) / step * step, config_.max_context);
  auto row = rope_rows_.find(length);
  if (row == rope_rows_.end()) {
    FATHOM_ASSIGN_OR_RETURN(const int32_t added, rope_.Add(config_.rope, length, length));
    row = rope_rows_.emplace(length, added).first;
  }
  return RopeChoice{.row = row->second, .key = static_cast<uint64_t>(length)};
}

Status Decoder::LoadWeights(WeightStore& store) {
  const int64_t hidden = config_.hidden_size;
  FATHOM_ASSIGN_OR_RETURN(embedding_, store.Table(WeightGroup::kEmbedding, "model.embed_tokens",
                                                  config_.vocab_size, hidden));
  norms_.assign(static_cast<size_t>(config_.num_layers), {});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    LayerNorms& norms = norms_[static_cast<size_t>(layer)];
    const std::string prefix = fmt::format("model.layers.{}", layer);
    FATHOM_ASSIGN_OR_RETURN(
        norms.input, store.Vector(WeightGroup::kNorms, prefix + ".input_layernorm.weight", hidden));
    FATHOM_ASSIGN_OR_RETURN(
        norms.post_attention,
        store.Vector(WeightGroup::kNorms, prefix + ".post_attention_layernorm.weight", hidden));
    FATHOM_TRY(LoadLayer(store, layer));
  }
  FATHOM_ASSIGN_OR_RETURN(final_norm_,
                          store.Vector(WeightGroup::kNorms, "model.norm.weight", hidden));
  FATHOM_ASSIGN_OR_RETURN(
      head_,
      store.Linear(WeightGroup::kHead, config_.tie_embeddings ? "model.embed_tokens" : "lm_head",
                   config_.vocab_size, hidden));
  FATHOM_TRY(LoadRest(store));
  return store.Finish([this](std::string_view name) {
    if (name.ends_with(".rotary_emb.inv_freq")) return true;  // older exports; made anew here
    if (config_.tie_embeddings && name == "lm_head.weight") return true;
    return IsIgnorable(name);
  });
}

Status Decoder::Adopt(std::unique_ptr<WeightStore> store) {
  const int64_t positions = FirstTablePositions();
  FATHOM_TRY(rope_.Add(config_.rope, positions, positions));
  store_ = std::move(store);
  const std::string text =
      fmt::format("{}/{}/{}/{}", config_.text_hash, Describe(config_.rope),
                  static_cast<int>(options_.precision), store_->content_hash());
  fingerprint_ = Hash64(text);
  return {};
}

StepPlan Decoder::Plan(const ops::StepBucket& bucket) const {
  const size_t common = ArenaBytes()
                            .F32(bucket.num_tokens, config_.hidden_size)  // normed
                            .F32(bucket.num_tokens, config_.hidden_size)  // residual stream
                            .F32(bucket.num_tokens, config_.hidden_size)  // what is added to it
                            .bytes();
  return {.bucket = bucket,
          .workspace_bytes =
              common + std::max({AttentionBytes(bucket), MlpBytes(bucket), HeadBytes(bucket)})};
}

size_t Decoder::HeadBytes(const ops::StepBucket& bucket) const {
  return ArenaBytes()
      .F32(bucket.num_logits, config_.hidden_size)
      .Bytes(ops::linear::MakePlan(options_.precision, config_.vocab_size, config_.hidden_size,
                                   bucket.num_logits)
                 .workspace_bytes)
      .bytes();
}

Status Decoder::Forward(const StepPlan& plan, const ops::StepInputs& inputs,
                        std::span<const ops::CacheView> caches, ops::Context& context,
                        TensorView logits) {
  const ArenaScope scope(context.arena);
  const TensorView hidden =
      context.arena.Tensor(DType::kF32, {inputs.bucket.num_tokens, config_.hidden_size});
  return ForwardHidden(plan, inputs, caches, context, hidden, logits);
}

Status Decoder::ForwardHidden(const StepPlan& plan, const ops::StepInputs& inputs,
                              std::span<const ops::CacheView> caches, ops::Context& context,
                              const TensorView& hidden, const TensorView& logits) {
  CheckPlan(plan, inputs, context);
  Step step{inputs, caches, context, inputs.live_counts + ops::kLiveTokens};
  FATHOM_TRY(Layers(hidden, step));
  return Head(*head_, hidden, logits, step);
}

void Decoder::CheckPlan(const StepPlan& plan, const ops::StepInputs& inputs,
                        const ops::Context& context) const {
  const ops::StepBucket& bucket = inputs.bucket;
  FATHOM_CHECK(bucket.num_tokens <= plan.bucket.num_tokens &&
                   bucket.num_sequences <= plan.bucket.num_sequences &&
                   bucket.num_logits <= plan.bucket.num_logits,
               "the step exceeds its plan");
  FATHOM_CHECK(context.pool.num_threads() <= options_.num_threads,
               "a pool of {} threads, planned for {}", context.pool.num_threads(),
               options_.num_threads);
}

Status Decoder::Layers(const TensorView& hidden, Step& step) {
  ops::Context& context = step.context;
  const ArenaScope scope(context.arena);
  const int64_t tokens = step.num_tokens();
  // The residual stream, and what the last half layer adds to it.
  const TensorView stream = context.arena.Tensor(DType::kF32, {tokens, config_.hidden_size});
  const TensorView delta = context.arena.Tensor(DType::kF32, {tokens, config_.hidden_size});
  {
    auto span = context.Mark(Op::kEmbed, -1);
    SetCost(span, cost::Embed(static_cast<double>(tokens), config_.hidden_size,
                              SizeOf(embedding_.dtype)));
    FATHOM_TRY(ops::embed::Run({.table = embedding_, .output = stream}, step.inputs, context));
  }
  Show(Op::kEmbed, -1, stream, step);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerNorms& norms = norms_[static_cast<size_t>(layer)];
    FATHOM_TRY(Norm(norms.input, stream, layer == 0 ? TensorView{} : delta, hidden, layer, step));
    FATHOM_TRY(Attention(layer, hidden, delta, step));
    FATHOM_TRY(Norm(norms.post_attention, stream, delta, hidden, layer, step));
    FATHOM_TRY(Mlp(layer, hidden, delta, step));
  }
  return Norm(final_norm_, stream, delta, hidden, -1, step);
}

Status Decoder::Head(const PackedWeight& head, const TensorView& hidden, const TensorView& logits,
                     Step& step) {
  ops::Context& context = step.context;
  const int64_t rows = step.inputs.bucket.num_logits;
  if (rows == 0) return {};
  const ArenaScope scope(context.arena);
  auto span = context.Mark(Op::kHead, -1);
  SetCost(span, cost::Linear(static_cast<double>(rows), config_.vocab_size, config_.hidden_size,
                             static_cast<double>(head.Bytes())));
  const TensorView gathered = context.arena.Tensor(DType::kF32, {rows, config_.hidden_size});
  FATHOM_TRY(
      ops::embed::GatherLogitsRows({.input = hidden, .output = gathered}, step.inputs, context));
  FATHOM_TRY(ops::linear::Run(ops::linear::MakePlan(head, rows), head,
                              {.input = gathered,
                               .output = logits,
                               .live_rows = step.inputs.live_counts + ops::kLiveLogits},
                              context));
  Show(Op::kHead, -1, logits, step);
  return {};
}

Status Decoder::Norm(const float* weight, const TensorView& input, const TensorView& residual,
                     const TensorView& output, int layer, Step& step) {
  auto span = step.context.Mark(Op::kNorm, layer);
  SetCost(span,
          cost::Norm(static_cast<double>(input.shape[0]), static_cast<double>(input.shape[1])));
  FATHOM_TRY(ops::norm::RmsNorm({.input = input,
                                 .residual = residual,
                                 .output = output,
                                 .weight = weight,
                                 .eps = static_cast<float>(config_.rms_norm_eps),
                                 .live_rows = step.live_tokens},
                                step.context));
  Show(Op::kNorm, layer, output, step);
  return {};
}

cost::Cost Decoder::LinearCost(const PackedWeight& weight, const Step& step) {
  return cost::Linear(static_cast<double>(step.num_tokens()), static_cast<double>(weight.rows()),
                      static_cast<double>(weight.cols()), static_cast<double>(weight.Bytes()));
}

Status Decoder::Linear(const PackedWeight& weight, const TensorView& input,
                       const TensorView& output, Step& step, const float* bias) {
  return ops::linear::Run(
      ops::linear::MakePlan(weight, step.num_tokens()), weight,
      {.input = input, .output = output, .bias = bias, .live_rows = step.live_tokens},
      step.context);
}

Status Decoder::Project(Op op, int layer, const PackedWeight& weight, const TensorView& input,
                        const TensorView& output, Step& step, const float* bias) {
  auto span = step.context.Mark(op, layer);
  SetCost(span, LinearCost(weight, step));
  FATHOM_TRY(Linear(weight, input, output, step, bias));
  Show(op, layer, output, step);
  return {};
}

size_t Decoder::LinearBytes(const ops::StepBucket& bucket, int64_t rows, int64_t cols) const {
  return ops::linear::MakePlan(options_.precision, rows, cols, bucket.num_tokens, options_.gemm)
      .workspace_bytes;
}

Status Decoder::GatedMlp(Op op, int layer, const MlpWeights& weights, const TensorView& input,
                         const TensorView& output, Step& step) {
  ops::Context& context = step.context;
  auto span = context.Mark(op, layer);
  SetCost(span, LinearCost(*weights.gate_up, step) + LinearCost(*weights.down, step));
  FATHOM_TRY(ops::mlp::Run(GatedMlpPlan(step.inputs.bucket, weights.down->cols()), weights,
                           {.input = input, .output = output, .live_rows = step.live_tokens},
                           context));
  Show(op, layer, output, step);
  return {};
}

ops::mlp::Plan Decoder::GatedMlpPlan(const ops::StepBucket& bucket, int64_t intermediate) const {
  return ops::mlp::MakePlan(options_.precision, config_.hidden_size, intermediate,
                            bucket.num_tokens, options_.gemm);
}

}  // namespace fathom::model
