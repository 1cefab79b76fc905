#include "model/deepseek.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cost/op_cost.h"
#include "ops/kv_cache.h"
#include "ops/norm.h"

namespace fathom::model {

using event::Op;

Deepseek::Deepseek(const ModelConfig& config, const DecoderOptions& options, std::string name)
    : Decoder(config, options, std::move(name)) {
  const double head_dim = mla().qk_head_dim();
  shape_ = {.num_heads = config.num_heads,
            .kv_lora_rank = mla().kv_lora_rank,
            .nope_dim = mla().qk_nope_head_dim,
            .rope_dim = mla().qk_rope_head_dim,
            .v_dim = mla().v_head_dim,
            .softmax_scale =
                static_cast<float>(ops::YarnSoftmaxFactor(config.rope) / std::sqrt(head_dim)),
            .precision = options.precision};
  experts_shape_ = {.num_experts = moe().gate.num_experts,
                    .top_k = moe().gate.top_k,
                    .hidden = config.hidden_size,
                    .intermediate = moe().intermediate_size,
                    .precision = options.precision};
}

Result<std::unique_ptr<Deepseek>> Deepseek::Create(const ModelConfig& config,
                                                   const DecoderOptions& options,
                                                   std::string name) {
  auto model = std::unique_ptr<Deepseek>(new Deepseek(config, options, std::move(name)));
  FATHOM_TRY(ops::moe::ValidateGate(config.moe->gate));
  FATHOM_ASSIGN_OR_RETURN(
      model->formats_.emplace_back(),
      ops::MakeMlaFormat(config.num_layers, config.mla->kv_lora_rank, config.mla->qk_rope_head_dim,
                         options.kv_dtype, options.page_tokens,
                         ops::RopeState::kRotatedInterleaved));
  FATHOM_TRY(ops::ValidateRope(config.rope));
  if (options.mtp) {
    if (config.num_mtp_layers != 1) {
      return Err(Code::kUnsupported,
                 "config.json: 'num_nextn_predict_layers' is {}, multi-token prediction needs 1",
                 config.num_mtp_layers);
    }
    ops::CacheFormat format = model->formats_[0];
    format.group = ops::LayerGroup::kMtp;
    format.num_layers = 1;
    model->formats_.push_back(format);
  }
  return model;
}

Status Deepseek::LoadLayer(WeightStore& store, int index) {
  layers_.resize(static_cast<size_t>(config_.num_layers));
  Layer& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = fmt::format("model.layers.{}", index);
  FATHOM_TRY(LoadAttention(store, WeightGroup::kAttention, prefix + ".self_attn", layer.attention));
  return LoadMlp(store, std::nullopt, index, prefix + ".mlp", layer);
}

Status Deepseek::LoadAttention(WeightStore& store, WeightGroup group, const std::string& prefix,
                               AttentionWeights& weights) const {
  using Part = WeightStore::Part;
  const bool q_lora = mla().q_lora_rank > 0;
  const std::array<Part, 2> qkv_a = {
      Part{prefix + (q_lora ? ".q_a_proj" : ".q_proj"), QueryLatentColumns()},
      Part{prefix + ".kv_a_proj_with_mqa", KvColumns()}};
  FATHOM_ASSIGN_OR_RETURN(weights.qkv_a, store.Linear(group, qkv_a, config_.hidden_size));
  if (q_lora) {
    FATHOM_ASSIGN_OR_RETURN(
        weights.q_norm, store.Vector(group, prefix + ".q_a_layernorm.weight", mla().q_lora_rank));
    FATHOM_ASSIGN_OR_RETURN(
        weights.q_b, store.Linear(group, prefix + ".q_b_proj", QueryColumns(), mla().q_lora_rank));
  }
  FATHOM_ASSIGN_OR_RETURN(
      weights.kv_norm, store.Vector(group, prefix + ".kv_a_layernorm.weight", mla().kv_lora_rank));
  FATHOM_ASSIGN_OR_RETURN(weights.kv_b, store.Mla(group, prefix + ".kv_b_proj", shape_));
  FATHOM_ASSIGN_OR_RETURN(
      weights.out, store.Linear(group, prefix + ".o_proj", config_.hidden_size, ValueColumns()));
  return {};
}

Status Deepseek::LoadMlp(WeightStore& store, std::optional<WeightGroup> group, int index,
                         const std::string& prefix, Layer& layer) const {
  const auto in = [&](WeightGroup own) { return group.value_or(own); };
  if (!config_.IsMoeLayer(index)) {
    FATHOM_ASSIGN_OR_RETURN(layer.mlp, store.Mlp(in(WeightGroup::kDenseMlp), prefix,
                                                 config_.hidden_size, config_.intermediate_size));
    return {};
  }
  MoeWeights& weights = layer.moe;
  FATHOM_ASSIGN_OR_RETURN(weights.gate,
                          store.LinearF32(in(WeightGroup::kGate), prefix + ".gate",
                                          moe().gate.num_experts, config_.hidden_size));
  if (moe().gate.method == ops::moe::TopkMethod::kNoauxTc) {
    FATHOM_ASSIGN_OR_RETURN(
        weights.gate_bias,
        store.Vector(in(WeightGroup::kGate), prefix + ".gate.e_score_correction_bias",
                     moe().gate.num_experts));
  }
  FATHOM_ASSIGN_OR_RETURN(weights.shared,
                          store.Mlp(in(WeightGroup::kSharedExperts), prefix + ".shared_experts",
                                    config_.hidden_size, SharedIntermediate()));
  FATHOM_ASSIGN_OR_RETURN(weights.experts, store.Experts(in(WeightGroup::kExperts),
                                                         prefix + ".experts", experts_shape_));
  return {};
}

bool Deepseek::IsIgnorable(std::string_view name) const {
  // Multi-token-prediction layers follow the last layer; those that are wanted were read.
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && layer >= config_.num_layers &&
         layer < config_.num_layers + config_.num_mtp_layers;
}

size_t Deepseek::AttentionBytes(const ops::StepBucket& bucket) const {
  const auto plan = ops::attention::MakePlan(shape_, formats_[0], bucket, options_.num_threads);
  FATHOM_CHECK(plan.has_value(), "{}", plan.error().message);
  const int64_t columns = QueryLatentColumns() + KvColumns();
  const size_t linear = std::max({LinearBytes(bucket, columns, config_.hidden_size),
                                  LinearBytes(bucket, QueryColumns(), QueryLatentColumns()),
                                  LinearBytes(bucket, config_.hidden_size, ValueColumns())});
  return ArenaBytes()
      .F32(bucket.num_tokens, columns)
      .F32(bucket.num_tokens, QueryColumns())
      .F32(bucket.num_tokens, ValueColumns())
      .Bytes(std::max(plan->workspace_bytes, linear))
      .bytes();
}

size_t Deepseek::MlpBytes(const ops::StepBucket& bucket) const {
  const size_t dense = GatedMlpPlan(bucket, config_.intermediate_size).workspace_bytes;
  const size_t shared = GatedMlpPlan(bucket, SharedIntermediate()).workspace_bytes;
  const size_t experts = ops::moe::MakePlan(experts_shape_, bucket.num_tokens).workspace_bytes;
  const size_t gate = ops::linear::MakePlan(ops::Precision::kF32, moe().gate.num_experts,
                                            config_.hidden_size, bucket.num_tokens)
                          .workspace_bytes;
  const size_t routed = ArenaBytes()
                            .F32(bucket.num_tokens, moe().gate.num_experts)
                            .F32(bucket.num_tokens, moe().gate.top_k)  // ids
                            .F32(bucket.num_tokens, moe().gate.top_k)  // weights
                            .Bytes(std::max({shared, experts, gate}))
                            .bytes();
  return std::max(dense, routed);
}

Status Deepseek::Attention(int index, const TensorView& hidden, const TensorView& output,
                           Step& step) {
  return LatentAttention(index, layers_[static_cast<size_t>(index)].attention, 0, index, hidden,
                         output, step);
}

Status Deepseek::LatentAttention(int index, const AttentionWeights& weights, int cache_group,
                                 int cache_layer, const TensorView& hidden,
                                 const TensorView& output, Step& step) {
  ops::Context& context = step.context;
  const ArenaScope scope(context.arena);
  const int64_t tokens = step.num_tokens();
  const bool q_lora = mla().q_lora_rank > 0;
  const TensorView qkv_a =
      context.arena.Tensor(DType::kF32, {tokens, QueryLatentColumns() + KvColumns()});
  const TensorView q_latent = Columns(qkv_a, 0, QueryLatentColumns());
  const TensorView kv_latent = Columns(qkv_a, QueryLatentColumns(), KvColumns());
  TensorView q = q_latent;
  {
    // c_Q = W_DQ h, c_KV = W_DKV h, k_R = W_KR h; q = W_UQ norm(c_Q)  (V2, equations 9 and 12-15)
    auto span = context.Mark(Op::kQkv, index);
    cost::Cost cost = LinearCost(*weights.qkv_a, step);
    FATHOM_TRY(Linear(*weights.qkv_a, hidden, qkv_a, step));
    if (q_lora) {
      cost += LinearCost(*weights.q_b, step);
      q = context.arena.Tensor(DType::kF32, {tokens, QueryColumns()});
      FATHOM_TRY(ops::norm::RmsNorm({.input = q_latent,
                                     .output = q_latent,
                                     .weight = weights.q_norm,
                                     .eps = static_cast<float>(config_.rms_norm_eps),
                                     .live_rows = step.live_tokens},
                                    context));
      FATHOM_TRY(Linear(*weights.q_b, q_latent, q, step));
    }
    SetCost(span, cost);
  }
  Show(Op::kQkv, index, q, step);
  const ops::CacheFormat& format = formats_[static_cast<size_t>(cache_group)];
  const ops::CacheView& cache = step.caches[static_cast<size_t>(cache_group)];
  const TensorView q_heads = Heads(q, config_.num_heads, mla().qk_head_dim());
  const double kv_bytes = static_cast<double>(format.page_bytes) / format.page_tokens;
  {
    // The cache holds norm(c_KV) and RoPE(k_R): all that any head's keys and values come from.
    auto span = context.Mark(Op::kRopeCache, index);
    const int64_t rotated = (int64_t{config_.num_heads} + 1) * mla().qk_rope_head_dim;
    SetCost(span,
            cost::RopeCache(static_cast<double>(tokens), static_cast<double>(rotated), kv_bytes));
    FATHOM_TRY(ops::kv_cache::WriteMla({.q = q_heads,
                                        .kv_a = kv_latent,
                                        .norm_weight = weights.kv_norm,
                                        .eps = static_cast<float>(config_.rms_norm_eps),
                                        .tables = &rope_,
                                        .cache = cache,
                                        .layer = cache_layer,
                                        .page_table = cache_group},
                                       step.inputs, context));
  }
  Show(Op::kRopeCache, index, q, step);
  const TensorView attended = context.arena.Tensor(DType::kF32, {tokens, ValueColumns()});
  {
    auto span = context.Mark(Op::kAttention, index);
    const cost::MlaDims dims{.heads = static_cast<double>(shape_.num_heads),
                             .kv_lora = static_cast<double>(shape_.kv_lora_rank),
                             .nope = static_cast<double>(shape_.nope_dim),
                             .rope = static_cast<double>(shape_.rope_dim),
                             .v = static_cast<double>(shape_.v_dim)};
    const auto bytes = static_cast<double>(weights.kv_b->Bytes());
    cost::Cost cost;
    if (step.inputs.prompt_work.pairs > 0) {
      cost += cost::MlaExpanded(WorkShape(step.inputs.prompt_work), dims, kv_bytes, bytes);
    }
    if (step.inputs.generated_work.pairs > 0) {
      cost += cost::MlaAbsorbed(WorkShape(step.inputs.generated_work), dims, kv_bytes, bytes);
    }
    SetCost(span, cost);
    FATHOM_ASSIGN_OR_RETURN(
        const ops::attention::Plan plan,
        ops::attention::MakePlan(shape_, format, step.inputs.bucket, options_.num_threads));
    FATHOM_TRY(ops::attention::Run(plan, shape_, *weights.kv_b,
                                   {.q = q_heads,
                                    .out = Heads(attended, config_.num_heads, mla().v_head_dim),
                                    .cache = cache,
                                    .layer = cache_layer,
                                    .page_table = cache_group},
                                   step.inputs, context));
  }
  Show(Op::kAttention, index, attended, step);
  return Project(Op::kOutProj, index, *weights.out, attended, output, step);
}

Status Deepseek::Mlp(int index, const TensorView& hidden, const TensorView& output, Step& step) {
  return LayerMlp(index, layers_[static_cast<size_t>(index)], hidden, output, step);
}

Status Deepseek::LayerMlp(int index, const Layer& layer, const TensorView& hidden,
                          const TensorView& output, Step& step) {
  if (config_.IsMoeLayer(index)) {
    return MixtureOfExperts(index, layer.moe, hidden, output, step);
  }
  return GatedMlp(Op::kDenseMlp, index, layer.mlp, hidden, output, step);
}

// y = shared(x) + sum over the chosen experts of g_e E_e(x)  (V3, equations 12-16)
Status Deepseek::MixtureOfExperts(int index, const MoeWeights& weights, const TensorView& hidden,
                                  const TensorView& output, Step& step) {
  ops::Context& context = step.context;
  const ArenaScope scope(context.arena);
  const int64_t tokens = step.num_tokens();
  const ops::moe::GateSpec& gate = moe().gate;
  const TensorView scores = context.arena.Tensor(DType::kF32, {tokens, gate.num_experts});
  const TensorView chosen = context.arena.Tensor(DType::kI32, {tokens, gate.top_k});
  const TensorView mix = context.arena.Tensor(DType::kF32, {tokens, gate.top_k});
  {
    auto span = context.Mark(Op::kGate, index);
    SetCost(span, LinearCost(*weights.gate, step));
    FATHOM_TRY(Linear(*weights.gate, hidden, scores, step));
    FATHOM_TRY(ops::moe::Gate(gate,
                              {.logits = scores,
                               .bias = weights.gate_bias,
                               .experts = chosen,
                               .weights = mix,
                               .live_rows = step.live_tokens},
                              context));
  }
  Show(Op::kGate, index, chosen, step);
  FATHOM_TRY(GatedMlp(Op::kSharedExpert, index, weights.shared, hidden, output, step));

  auto span = context.Mark(Op::kExperts, index);
  SetCost(span, cost::Experts(static_cast<double>(tokens), gate.num_experts, gate.top_k,
                              config_.hidden_size, moe().intermediate_size,
                              SizeOf(weights.experts[0].down.dtype())));
  const ArenaScope routing_scope(context.arena);
  const ops::moe::Plan plan = ops::moe::MakePlan(experts_shape_, tokens);
  const ops::moe::ExpertsArgs args{.input = hidden,
                                   .experts = chosen,
                                   .weights = mix,
                                   .output = output,
                                   .live_rows = step.live_tokens};
  FATHOM_ASSIGN_OR_RETURN(const ops::moe::Routing routing, ops::moe::Prepare(plan, args, context));
  FATHOM_TRY(ops::moe::Run(plan, weights.experts, routing, args, context));
  Show(Op::kExperts, index, output, step);
  return {};
}

}  // namespace fathom::model
