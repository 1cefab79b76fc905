#pragma once
// config.json and generation_config.json as Hugging Face lays them out, for the architectures that
// this program runs: DeepSeek V2/V2-Lite/V3/R1 (MLA and MoE) and the models that R1 was distilled
// into, Qwen2 and Llama (GQA).
//
// Nothing that changes a result has a default here: what a file leaves out is an error, as is a
// value or a key that is not known to be harmless (docs/models.md lists those).
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/moe.h"
#include "ops/rope.h"

namespace fathom::model {

enum class Architecture : uint8_t { kDeepseekV2, kDeepseekV3, kQwen2, kLlama };

std::string_view NameOf(Architecture architecture);  // "DeepseekV3ForCausalLM", ...

// Multi-head latent attention. Checkpoints store RoPE pairs interleaved, (2i, 2i+1).
struct MlaConfig {
  int32_t q_lora_rank = 0;  // 0: a plain q_proj
  int32_t kv_lora_rank = 0;
  int32_t qk_nope_head_dim = 0;
  int32_t qk_rope_head_dim = 0;
  int32_t v_head_dim = 0;

  int32_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

struct MoeConfig {
  ops::moe::GateSpec gate;  // n_routed_experts, num_experts_per_tok, groups, scoring, ...
  int32_t num_shared_experts = 0;
  int32_t intermediate_size = 0;  // of one expert
  int32_t first_dense_layers = 0;
  int32_t layer_frequency = 1;
};

// Weights in fp8 e4m3 with one f32 scale per [rows, columns] block ("weight_scale_inv", which
// multiplies despite its name). Which tensors are quantised shows in the file.
struct Fp8Config {
  int32_t block_rows = 0;
  int32_t block_columns = 0;
};

struct ModelConfig {
  Architecture architecture = Architecture::kDeepseekV3;
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of dense MLPs
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;         // GQA
  bool qkv_bias = false;        // Qwen2
  bool tie_embeddings = false;  // the head is the embedding
  int32_t num_mtp_layers = 0;   // num_nextn_predict_layers, stored after the last layer
  double rms_norm_eps = 0;
  ops::RopeSpec rope;
  int64_t native_context = 0;  // tokens, before any scaling
  int64_t max_context = 0;     // tokens that a sequence may hold, after scaling
  std::optional<MlaConfig> mla;
  std::optional<MoeConfig> moe;
  std::optional<Fp8Config> fp8;
  uint64_t text_hash = 0;  // of the file: tells apart what computes differently
  std::vector<int32_t> bos_tokens;
  std::vector<int32_t> eos_tokens;

  bool IsMoeLayer(int layer) const;
};

// What the model's authors recommend for sampling.
struct GenerationConfig {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<bool> do_sample;
  std::vector<int32_t> eos_tokens;
};

// `where` names the file in messages.
Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view where);
Result<GenerationConfig> ParseGenerationConfig(std::string_view json, std::string_view where);

Result<ModelConfig> LoadModelConfig(const std::string& directory);
// A directory without generation_config.json gives an empty one.
Result<GenerationConfig> LoadGenerationConfig(const std::string& directory);

// Replaces the scaling of `config` (--rope-scaling). An override that leaves out the original
// length takes the model's native one.
Status OverrideRope(ModelConfig& config, const ops::RopeSpec& scaling);

}  // namespace fathom::model
