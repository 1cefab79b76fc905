// DeepSeek-V3's multi-token prediction layer (arXiv:2412.19437, section 2.2):
//   h' = W_eh [RMSNorm(Emb(t_{p+1})) ; RMSNorm(h_p)],  h'' = Block(h'),  logits =
//   Head(RMSNorm(h''))
// h_p is the main model's state after its final norm; slot p rotates by position p.
#include <algorithm>

#include "model/deepseek.h"
#include "ops/embed.h"

namespace fathom::model {

using event::Op;

Status Deepseek::LoadRest(WeightStore& store) {
  if (!options_.mtp) return {};
  mtp_ = std::make_unique<Mtp>();
  const int64_t hidden = config_.hidden_size;
  const std::string prefix = fmt::format("model.layers.{}.", config_.num_layers);
  const WeightGroup group = WeightGroup::kMtp;
  FATHOM_ASSIGN_OR_RETURN(mtp_->embedding,
                          store.Table(group, prefix + "embed_tokens", config_.vocab_size, hidden));
  FATHOM_ASSIGN_OR_RETURN(mtp_->embedding_norm,
                          store.Vector(group, prefix + "enorm.weight", hidden));
  FATHOM_ASSIGN_OR_RETURN(mtp_->hidden_norm, store.Vector(group, prefix + "hnorm.weight", hidden));
  FATHOM_ASSIGN_OR_RETURN(mtp_->combine,
                          store.Linear(group, prefix + "eh_proj", hidden, 2 * hidden));
  FATHOM_ASSIGN_OR_RETURN(mtp_->input_norm,
                          store.Vector(group, prefix + "input_layernorm.weight", hidden));
  FATHOM_ASSIGN_OR_RETURN(mtp_->post_attention_norm,
                          store.Vector(group, prefix + "post_attention_layernorm.weight", hidden));
  FATHOM_TRY(LoadAttention(store, group, prefix + "self_attn", mtp_->layer.attention));
  FATHOM_TRY(LoadMlp(store, group, config_.num_layers, prefix + "mlp", mtp_->layer));
  FATHOM_ASSIGN_OR_RETURN(mtp_->head_norm,
                          store.Vector(group, prefix + "shared_head.norm.weight", hidden));
  FATHOM_ASSIGN_OR_RETURN(
      mtp_->head, store.Linear(group, prefix + "shared_head.head", config_.vocab_size, hidden));
  return {};
}

StepPlan Deepseek::DraftPlan(const ops::StepBucket& bucket) const {
  const int64_t hidden = config_.hidden_size;
  const size_t states = ArenaBytes()
                            .F32(bucket.num_tokens, hidden)
                            .F32(bucket.num_tokens, hidden)
                            .F32(bucket.num_tokens, hidden)
                            .bytes();
  const size_t combine = ArenaBytes()
                             .F32(bucket.num_tokens, 2 * hidden)
                             .Bytes(LinearBytes(bucket, hidden, 2 * hidden))
                             .bytes();
  return {.bucket = bucket,
          .workspace_bytes = states + std::max({combine, AttentionBytes(bucket), MlpBytes(bucket),
                                                HeadBytes(bucket)})};
}

Status Deepseek::Draft(const StepPlan& plan, const ops::StepInputs& inputs,
                       std::span<const ops::CacheView> caches, ops::Context& context,
                       const TensorView& hidden, const TensorView& logits) {
  FATHOM_CHECK(mtp_ != nullptr, "the MTP layer was not loaded");
  CheckPlan(plan, inputs, context);
  constexpr int kCacheGroup = 1;
  const int index = config_.num_layers;
  Step step{inputs, caches, context, inputs.live_counts + ops::kLiveTokens};
  const ArenaScope scope(context.arena);
  const int64_t tokens = step.num_tokens();
  const TensorView stream = context.arena.Tensor(DType::kF32, {tokens, config_.hidden_size});
  const TensorView delta = context.arena.Tensor(DType::kF32, {tokens, config_.hidden_size});
  const TensorView normed = context.arena.Tensor(DType::kF32, {tokens, config_.hidden_size});
  {
    const ArenaScope combine_scope(context.arena);
    const TensorView both = context.arena.Tensor(DType::kF32, {tokens, 2 * config_.hidden_size});
    {
      auto span = context.Mark(Op::kEmbed, index);
      FATHOM_TRY(ops::embed::Run({.table = mtp_->embedding, .output = normed}, inputs, context));
    }
    FATHOM_TRY(
        Norm(mtp_->embedding_norm, normed, {}, Columns(both, 0, config_.hidden_size), index, step));
    FATHOM_TRY(Norm(mtp_->hidden_norm, hidden, {},
                    Columns(both, config_.hidden_size, config_.hidden_size), index, step));
    FATHOM_TRY(Project(Op::kQkv, index, *mtp_->combine, both, stream, step));
  }
  FATHOM_TRY(Norm(mtp_->input_norm, stream, {}, normed, index, step));
  FATHOM_TRY(LatentAttention(index, mtp_->layer.attention, kCacheGroup, 0, normed, delta, step));
  FATHOM_TRY(Norm(mtp_->post_attention_norm, stream, delta, normed, index, step));
  FATHOM_TRY(LayerMlp(index, mtp_->layer, normed, delta, step));
  FATHOM_TRY(Norm(mtp_->head_norm, stream, delta, normed, index, step));
  return Head(*mtp_->head, normed, logits, step);
}

}  // namespace fathom::model
