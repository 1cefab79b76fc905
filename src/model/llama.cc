#include "model/llama.h"

#include <algorithm>
#include <cmath>

#include "cost/op_cost.h"
#include "ops/kv_cache.h"

namespace fathom::model {

using event::Op;

Llama::Llama(const ModelConfig& config, const DecoderOptions& options, std::string name)
    : Decoder(config, options, std::move(name)),
      shape_{.num_heads = config.num_heads,
             .num_kv_heads = config.num_kv_heads,
             .head_dim = config.head_dim,
             .head_dim_v = config.head_dim,
             .softmax_scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim)),
             .precision = options.precision} {}

Result<std::unique_ptr<Llama>> Llama::Create(const ModelConfig& config,
                                             const DecoderOptions& options, std::string name) {
  auto model = std::unique_ptr<Llama>(new Llama(config, options, std::move(name)));
  FATHOM_ASSIGN_OR_RETURN(
      model->formats_.emplace_back(),
      ops::MakeGqaFormat(config.num_layers, config.num_kv_heads, config.head_dim, config.head_dim,
                         options.kv_dtype, options.page_tokens, ops::RopeState::kRotatedHalves));
  FATHOM_TRY(ops::ValidateRope(config.rope));
  return model;
}

Status Llama::LoadLayer(WeightStore& store, int index) {
  layers_.resize(static_cast<size_t>(config_.num_layers));
  Layer& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = fmt::format("model.layers.{}", index);
  const std::string attention = prefix + ".self_attn.";
  using Part = WeightStore::Part;
  const std::array<Part, 3> qkv = {Part{attention + "q_proj", QueryColumns()},
                                   Part{attention + "k_proj", KeyColumns()},
                                   Part{attention + "v_proj", KeyColumns()}};
  FATHOM_ASSIGN_OR_RETURN(layer.qkv,
                          store.Linear(WeightGroup::kAttention, qkv, config_.hidden_size));
  if (config_.qkv_bias) {
    const std::array<Part, 3> bias = {Part{attention + "q_proj.bias", QueryColumns()},
                                      Part{attention + "k_proj.bias", KeyColumns()},
                                      Part{attention + "v_proj.bias", KeyColumns()}};
    FATHOM_ASSIGN_OR_RETURN(layer.qkv_bias, store.Vector(WeightGroup::kAttention, bias));
  }
  FATHOM_ASSIGN_OR_RETURN(layer.out, store.Linear(WeightGroup::kAttention, attention + "o_proj",
                                                  config_.hidden_size, QueryColumns()));
  FATHOM_ASSIGN_OR_RETURN(layer.mlp, store.Mlp(WeightGroup::kDenseMlp, prefix + ".mlp",
                                               config_.hidden_size, config_.intermediate_size));
  return {};
}

size_t Llama::AttentionBytes(const ops::StepBucket& bucket) const {
  const auto plan = ops::attention::MakePlan(shape_, formats_[0], bucket, options_.num_threads);
  FATHOM_CHECK(plan.has_value(), "{}", plan.error().message);
  const int64_t columns = QueryColumns() + 2 * KeyColumns();
  return ArenaBytes()
      .F32(bucket.num_tokens, columns)
      .F32(bucket.num_tokens, QueryColumns())
      .Bytes(std::max({plan->workspace_bytes, LinearBytes(bucket, columns, config_.hidden_size),
                       LinearBytes(bucket, config_.hidden_size, QueryColumns())}))
      .bytes();
}

size_t Llama::MlpBytes(const ops::StepBucket& bucket) const {
  return GatedMlpPlan(bucket, config_.intermediate_size).workspace_bytes;
}

Status Llama::Attention(int index, const TensorView& hidden, const TensorView& output, Step& step) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  ops::Context& context = step.context;
  const ArenaScope scope(context.arena);
  const int64_t tokens = step.num_tokens();
  const int64_t query = QueryColumns();
  const int64_t key = KeyColumns();
  const TensorView qkv = context.arena.Tensor(DType::kF32, {tokens, query + 2 * key});
  const TensorView attended = context.arena.Tensor(DType::kF32, {tokens, query});
  FATHOM_TRY(Project(Op::kQkv, index, *layer.qkv, hidden, qkv, step, layer.qkv_bias));

  const TensorView q = Heads(Columns(qkv, 0, query), shape_.num_heads, shape_.head_dim);
  const double kv_bytes = static_cast<double>(formats_[0].page_bytes) / formats_[0].page_tokens;
  {
    auto span = context.Mark(Op::kRopeCache, index);
    SetCost(span, cost::RopeCache(static_cast<double>(tokens), static_cast<double>(query + key),
                                  kv_bytes));
    FATHOM_TRY(ops::kv_cache::WriteGqa(
        {.q = q,
         .k = Heads(Columns(qkv, query, key), shape_.num_kv_heads, shape_.head_dim),
         .v = Heads(Columns(qkv, query + key, key), shape_.num_kv_heads, shape_.head_dim),
         .tables = &rope_,
         .cache = step.caches[0],
         .layer = index},
        step.inputs, context));
  }
  Show(Op::kRopeCache, index, Columns(qkv, 0, query), step);
  {
    auto span = context.Mark(Op::kAttention, index);
    cost::Cost cost;
    for (const ops::RoleWork& work : {step.inputs.prompt_work, step.inputs.generated_work}) {
      cost += cost::GqaAttention(WorkShape(work), shape_.num_heads, shape_.head_dim,
                                 shape_.head_dim_v, kv_bytes);
    }
    SetCost(span, cost);
    FATHOM_ASSIGN_OR_RETURN(
        const ops::attention::Plan plan,
        ops::attention::MakePlan(shape_, formats_[0], step.inputs.bucket, options_.num_threads));
    FATHOM_TRY(ops::attention::Run(plan, shape_,
                                   {.q = q,
                                    .out = Heads(attended, shape_.num_heads, shape_.head_dim_v),
                                    .cache = step.caches[0],
                                    .layer = index},
                                   step.inputs, context));
  }
  Show(Op::kAttention, index, attended, step);
  return Project(Op::kOutProj, index, *layer.out, attended, output, step);
}

Status Llama::Mlp(int index, const TensorView& hidden, const TensorView& output, Step& step) {
  return GatedMlp(Op::kDenseMlp, index, layers_[static_cast<size_t>(index)].mlp, hidden, output,
                  step);
}

}  // namespace fathom::model
