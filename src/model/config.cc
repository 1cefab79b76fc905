#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/mapped_file.h"
#include "base/strings.h"
#include "model/json_reader.h"

namespace fathom::model {
namespace {

using ops::RopeScaling;
using ops::moe::Scoring;
using ops::moe::TopkMethod;

// Bounds that no real model comes near and that keep every product of sizes inside int64.
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxHeadDim = 1 << 13;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kMaxPosition = 1 << 30;

constexpr std::array kArchitectures = {
    std::string_view("DeepseekV2ForCausalLM"), std::string_view("DeepseekV3ForCausalLM"),
    std::string_view("Qwen2ForCausalLM"), std::string_view("LlamaForCausalLM")};
constexpr std::array kModelTypes = {std::string_view("deepseek_v2"),
                                    std::string_view("deepseek_v3"), std::string_view("qwen2"),
                                    std::string_view("llama")};

// Training settings and bookkeeping of the exporting library: nothing here reaches a logit.
// Kept in step with docs/models.md.
constexpr std::string_view kIgnoredKeys[] = {"_attn_implementation",
                                             "_name_or_path",
                                             "attention_dropout",
                                             "auto_map",
                                             "aux_loss_alpha",
                                             "dtype",
                                             "initializer_range",
                                             "output_router_logits",
                                             "pad_token_id",
                                             "router_aux_loss_coef",
                                             "seq_aux",
                                             "torch_dtype",
                                             "transformers_version",
                                             "use_cache"};

constexpr std::string_view kIgnoredGenerationKeys[] = {
    "_from_model_config", "bos_token_id", "decoder_start_token_id", "max_length",
    "max_new_tokens",     "pad_token_id", "transformers_version",   "use_cache"};

int32_t Small(int64_t value) { return static_cast<int32_t>(value); }

std::vector<int32_t> Tokens(JsonReader& json, std::string_view key, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (const int64_t id : json.OptionalInts(key, 0, vocab_size - 1)) tokens.push_back(Small(id));
  return tokens;
}

void Require(JsonReader& json, bool condition, const std::string& message) {
  if (!condition) {
    json.Fail(Error{Code::kInvalidArgument, fmt::format("{}: {}", json.where(), message)});
  }
}

// An object of scaling parameters: the older rope_scaling, or rope_parameters, which holds
// rope_theta too (`theta` is set).
Status ParseScalingObject(JsonReader json, int64_t max_position, ops::RopeSpec& rope,
                          std::optional<double>* theta) {
  constexpr std::array kTypes = {std::string_view("default"), std::string_view("linear"),
                                 std::string_view("dynamic"), std::string_view("yarn"),
                                 std::string_view("llama3")};
  constexpr std::array kScalings = {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kDynamic,
                                    RopeScaling::kYarn, RopeScaling::kLlama3};
  const std::optional<std::string> old_type = json.OptionalString("type");
  const std::optional<std::string> new_type = json.OptionalString("rope_type");
  if (old_type && new_type && *old_type != *new_type) {
    json.Fail(Error{Code::kInvalidArgument, fmt::format("{}: 'type' is {} but 'rope_type' is {}",
                                                        json.where(), *old_type, *new_type)});
  }
  rope.scaling = kScalings[json.OneOf(new_type || !old_type ? "rope_type" : "type", kTypes)];
  if (theta != nullptr) *theta = json.OptionalNumber("rope_theta", 1, 1e12);
  if (rope.scaling != RopeScaling::kNone) {
    rope.factor = json.Number("factor", 1, 1e6);
    rope.original_positions = max_position;
  }
  if (rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLlama3) {
    rope.original_positions = json.Int("original_max_position_embeddings", 1, kMaxPosition);
  }
  if (rope.scaling == RopeScaling::kYarn) {
    // The method's own values (arXiv:2309.00071, section 3) stand where a file has no betas.
    rope.beta_fast = json.OptionalNumber("beta_fast", 1e-3, 1e6).value_or(32);
    rope.beta_slow = json.OptionalNumber("beta_slow", 1e-3, 1e6).value_or(1);
    rope.mscale = json.OptionalNumber("mscale", 0, 100);
    rope.mscale_all_dim = json.OptionalNumber("mscale_all_dim", 0, 100);
    rope.attention_factor = json.OptionalNumber("attention_factor", 1e-3, 1e3);
    rope.truncate = json.OptionalBool("truncate").value_or(true);
    Require(json, rope.beta_fast > rope.beta_slow, "'beta_fast' must exceed 'beta_slow'");
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_freq_factor = json.Number("low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = json.Number("high_freq_factor", 1e-3, 1e6);
    Require(json, rope.low_freq_factor < rope.high_freq_factor,
            "'low_freq_factor' must be below 'high_freq_factor'");
  }
  return json.Finish({});
}

int64_t Stretched(const ops::RopeSpec& rope) {
  return static_cast<int64_t>(static_cast<double>(rope.original_positions) * rope.factor);
}

Status ParseRope(JsonReader& json, ModelConfig& config) {
  const int64_t max_position = json.Int("max_position_embeddings", 1, kMaxPosition);
  const auto old_object = json.OptionalObject("rope_scaling");
  const auto new_object = json.OptionalObject("rope_parameters");
  Require(json, !old_object || !new_object,
          "has both 'rope_scaling' and 'rope_parameters', expected one");
  std::optional<double> theta;
  if (json.ok() && (old_object || new_object)) {
    JsonReader scaling(
        fmt::format("{}: {}", json.where(), old_object ? "rope_scaling" : "rope_parameters"),
        old_object ? *old_object : *new_object);
    FATHOM_TRY(ParseScalingObject(std::move(scaling), max_position, config.rope,
                                  new_object ? &theta : nullptr));
  }
  if (theta) {
    const std::optional<double> outer = json.OptionalNumber("rope_theta", 1, 1e12);
    Require(json, !outer || *outer == *theta, "'rope_theta' differs from rope_parameters' own");
    config.rope.theta = *theta;
  } else {
    config.rope.theta = json.Number("rope_theta", 1, 1e12);
  }
  config.rope.dim = config.mla ? config.mla->qk_rope_head_dim : config.head_dim;
  const bool scaled = config.rope.scaling != RopeScaling::kNone;
  config.native_context = scaled ? config.rope.original_positions : max_position;
  config.max_context = max_position;
  // Llama 3.1 states the length it was trained to, which is not original x factor.
  if (scaled && config.rope.scaling != RopeScaling::kLlama3) {
    config.max_context = Stretched(config.rope);
  }
  Require(
      json, config.max_context <= kMaxPosition,
      fmt::format("the scaled context of {} tokens exceeds {}", config.max_context, kMaxPosition));
  return {};
}

Status ParseQuantization(JsonReader& json, ModelConfig& config) {
  const auto object = json.OptionalObject("quantization_config");
  if (!object) return {};
  JsonReader quant(fmt::format("{}: quantization_config", json.where()), *object);
  quant.OneOf("quant_method", std::array{std::string_view("fp8")});
  if (quant.Has("fmt")) quant.OneOf("fmt", std::array{std::string_view("e4m3")});
  if (quant.Has("activation_scheme")) {
    quant.OneOf("activation_scheme", std::array{std::string_view("dynamic")});
  }
  // How activations' scales would be rounded; weights carry theirs in the file.
  if (quant.Has("scale_fmt")) {
    quant.OneOf("scale_fmt", std::array{std::string_view("ue8m0"), std::string_view("float")});
  }
  const std::vector<int64_t> block = quant.OptionalInts("weight_block_size", 1, kMaxDim);
  Require(quant, block.size() == 2,
          "'weight_block_size' must be [rows, columns]; per-tensor fp8 is not supported");
  // Which tensors are quantised shows in the file: those that have a weight_scale_inv beside them.
  FATHOM_TRY(quant.Finish(std::array{std::string_view("modules_to_not_convert")}));
  config.fp8 = Fp8Config{.block_rows = Small(block[0]), .block_columns = Small(block[1])};
  return {};
}

void ParseMla(JsonReader& json, ModelConfig& config) {
  MlaConfig mla;
  mla.q_lora_rank = Small(json.OptionalInt("q_lora_rank", 1, kMaxDim).value_or(0));
  mla.kv_lora_rank = Small(json.Int("kv_lora_rank", 1, kMaxDim));
  mla.qk_nope_head_dim = Small(json.Int("qk_nope_head_dim", 1, kMaxHeadDim));
  mla.qk_rope_head_dim = Small(json.Int("qk_rope_head_dim", 2, kMaxHeadDim));
  mla.v_head_dim = Small(json.Int("v_head_dim", 1, kMaxHeadDim));
  Require(json, mla.qk_rope_head_dim % 2 == 0, "'qk_rope_head_dim' must be even");
  json.MustBe("num_key_value_heads", int64_t{config.num_heads},
              "MLA shares one latent among all heads");
  json.MustBe("head_dim", int64_t{mla.qk_rope_head_dim}, "the rotary dimension");
  json.MustBe("qk_head_dim", int64_t{mla.qk_head_dim()}, "nope + rope");
  json.MustBe("rope_interleave", true, "pairs are stored interleaved");
  json.MustBe("attention_bias", false, "MLA projections have no bias here");
  config.mla = mla;
}

void ParseMoe(JsonReader& json, ModelConfig& config) {
  MoeConfig moe;
  ops::moe::GateSpec& gate = moe.gate;
  gate.num_experts = Small(json.Int("n_routed_experts", 1, kMaxExperts));
  gate.top_k = Small(json.Int("num_experts_per_tok", 1, gate.num_experts));
  gate.norm_topk_prob = json.Bool("norm_topk_prob");
  gate.routed_scaling_factor = static_cast<float>(json.Number("routed_scaling_factor", 0, 1e6));
  moe.num_shared_experts = Small(json.Int("n_shared_experts", 1, 64));
  moe.intermediate_size = Small(json.Int("moe_intermediate_size", 1, kMaxDim));
  moe.first_dense_layers = Small(json.Int("first_k_dense_replace", 0, kMaxLayers));
  moe.layer_frequency = Small(json.Int("moe_layer_freq", 1, kMaxLayers));
  if (config.architecture == Architecture::kDeepseekV3) {
    json.OneOf("scoring_func", std::array{std::string_view("sigmoid")});
    json.OneOf("topk_method", std::array{std::string_view("noaux_tc")});
    gate.scoring = Scoring::kSigmoid;
    gate.method = TopkMethod::kNoauxTc;
  } else {
    constexpr std::array kMethods = {std::string_view("greedy"),
                                     std::string_view("group_limited_greedy")};
    json.OneOf("scoring_func", std::array{std::string_view("softmax")});
    gate.scoring = Scoring::kSoftmax;
    gate.method = json.OneOf("topk_method", kMethods) == 0 ? TopkMethod::kGreedy
                                                           : TopkMethod::kGroupLimitedGreedy;
    // Published codes disagree on whether normalised weights are scaled afterwards.
    Require(json, !gate.norm_topk_prob || gate.routed_scaling_factor == 1,
            "'norm_topk_prob' with a 'routed_scaling_factor' other than 1 has no agreed meaning "
            "for this architecture");
  }
  if (gate.method == TopkMethod::kGreedy) {
    json.OptionalInt("n_group", 1, kMaxExperts);  // greedy selection has no groups
    json.OptionalInt("topk_group", 1, kMaxExperts);
  } else {
    gate.num_groups = Small(json.Int("n_group", 1, gate.num_experts));
    gate.topk_group = Small(json.Int("topk_group", 1, gate.num_groups));
    Require(
        json, gate.num_experts % gate.num_groups == 0,
        fmt::format("{} experts do not divide into {} groups", gate.num_experts, gate.num_groups));
    const int32_t group_size = gate.num_experts / gate.num_groups;
    Require(json, gate.top_k <= int64_t{gate.topk_group} * group_size,
            fmt::format("'num_experts_per_tok' is {}, but {} groups hold {} experts", gate.top_k,
                        gate.topk_group, gate.topk_group * group_size));
    Require(json, gate.method != TopkMethod::kNoauxTc || group_size >= 2,
            "noaux_tc scores a group by its two best experts, so a group needs two");
  }
  json.MustBe("ep_size", int64_t{1}, "how the authors spread experts over devices");
  config.moe = moe;
}

void ParseGqa(JsonReader& json, ModelConfig& config) {
  config.num_kv_heads = Small(json.Int("num_key_value_heads", 1, config.num_heads));
  const std::optional<int64_t> head_dim = json.OptionalInt("head_dim", 2, kMaxHeadDim);
  Require(json, head_dim || config.hidden_size % config.num_heads == 0,
          fmt::format("'hidden_size' {} is not a multiple of 'num_attention_heads' {}",
                      config.hidden_size, config.num_heads));
  config.head_dim = Small(head_dim.value_or(config.hidden_size / config.num_heads));
  Require(json, config.head_dim >= 2 && config.head_dim % 2 == 0,
          fmt::format("a head dimension of {} cannot be rotated in pairs", config.head_dim));
  Require(json, config.num_heads % config.num_kv_heads == 0,
          fmt::format("{} query heads do not divide over {} key-value heads", config.num_heads,
                      config.num_kv_heads));
  if (config.architecture == Architecture::kQwen2) {
    config.qkv_bias = true;  // the architecture's; its config has no field for it
    json.MustBe("use_mrope", false, "multimodal rotary embedding");
    const std::optional<int64_t> window = json.OptionalInt("sliding_window", 1, kMaxPosition);
    const std::optional<int64_t> full_layers = json.OptionalInt("max_window_layers", 0, kMaxLayers);
    const bool sliding = json.OptionalBool("use_sliding_window").value_or(false);
    Require(json, !sliding || !window || (full_layers && *full_layers >= config.num_layers),
            "'use_sliding_window' is true: sliding-window attention is not supported");
  } else {
    json.MustBe("attention_bias", false, "biased Llama projections");
    json.MustBe("mlp_bias", false, "biased Llama projections");
  }
}

// Lists that newer exporters write out per layer must say what the other fields say.
void CheckLayerLists(JsonReader& json, const ModelConfig& config) {
  for (const std::string& type : json.OptionalStrings("layer_types")) {
    Require(json, type == "full_attention",
            fmt::format("'layer_types' has {}, supported: full_attention", type));
  }
  const std::vector<std::string> mlps = json.OptionalStrings("mlp_layer_types");
  for (size_t layer = 0; layer < mlps.size(); ++layer) {
    const bool sparse = config.IsMoeLayer(static_cast<int>(layer));
    Require(json, mlps[layer] == (sparse ? "sparse" : "dense"),
            fmt::format("'mlp_layer_types' makes layer {} {}, against the other fields", layer,
                        mlps[layer]));
  }
}

Result<std::string> ReadText(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return std::string(file.text());
}

}  // namespace

std::string_view NameOf(Architecture architecture) {
  return kArchitectures[static_cast<size_t>(architecture)];
}

bool ModelConfig::IsMoeLayer(int layer) const {
  return moe && layer >= moe->first_dense_layers && layer % moe->layer_frequency == 0;
}

Result<ModelConfig> ParseModelConfig(std::string_view text, std::string_view where) {
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const simdjson::dom::object root, ParseJsonObject(parser, text, where));
  JsonReader json{std::string(where), root};

  ModelConfig config;
  config.text_hash = Hash64(text);
  const std::vector<std::string> names = json.OptionalStrings("architectures");
  FATHOM_TRY(json.ok() ? Status{} : json.Finish({}));
  const auto known = names.size() == 1
                         ? std::find(kArchitectures.begin(), kArchitectures.end(), names[0])
                         : kArchitectures.end();
  if (known == kArchitectures.end()) {
    return Err(Code::kUnsupported, "{}: 'architectures' is [{}], supported: one of [{}]", where,
               fmt::join(names, ", "), fmt::join(kArchitectures, ", "));
  }
  const auto index = static_cast<size_t>(known - kArchitectures.begin());
  config.architecture = static_cast<Architecture>(index);
  json.OneOf("model_type", std::array{kModelTypes[index]});
  json.OneOf("hidden_act", std::array{std::string_view("silu")});

  config.vocab_size = Small(json.Int("vocab_size", 1, kMaxVocab));
  config.hidden_size = Small(json.Int("hidden_size", 1, kMaxDim));
  config.intermediate_size = Small(json.Int("intermediate_size", 1, kMaxDim));
  config.num_layers = Small(json.Int("num_hidden_layers", 1, kMaxLayers));
  config.num_heads = Small(json.Int("num_attention_heads", 1, kMaxHeads));
  config.rms_norm_eps = json.Number("rms_norm_eps", 0, 1);
  config.tie_embeddings = json.Bool("tie_word_embeddings");
  json.MustBe("pretraining_tp", int64_t{1}, "a training-time split of the projections");
  const bool deepseek = config.architecture == Architecture::kDeepseekV2 ||
                        config.architecture == Architecture::kDeepseekV3;
  if (deepseek) {
    ParseMla(json, config);
    ParseMoe(json, config);
    config.num_mtp_layers = Small(json.OptionalInt("num_nextn_predict_layers", 0, 64).value_or(0));
    json.MustBe("mlp_bias", false, "biased MLPs");
  } else {
    ParseGqa(json, config);
  }
  FATHOM_TRY(ParseRope(json, config));
  FATHOM_TRY(ParseQuantization(json, config));
  config.bos_tokens = Tokens(json, "bos_token_id", config.vocab_size);
  config.eos_tokens = Tokens(json, "eos_token_id", config.vocab_size);
  CheckLayerLists(json, config);
  FATHOM_TRY(json.Finish(kIgnoredKeys));
  return config;
}

Result<GenerationConfig> ParseGenerationConfig(std::string_view text, std::string_view where) {
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const simdjson::dom::object root, ParseJsonObject(parser, text, where));
  JsonReader json{std::string(where), root};
  GenerationConfig config;
  config.temperature = json.OptionalNumber("temperature", 0, 100);
  config.top_p = json.OptionalNumber("top_p", 0, 1);
  if (const auto k = json.OptionalInt("top_k", 0, kMaxVocab)) config.top_k = Small(*k);
  config.min_p = json.OptionalNumber("min_p", 0, 1);
  config.repetition_penalty = json.OptionalNumber("repetition_penalty", 1e-3, 1e3);
  config.do_sample = json.OptionalBool("do_sample");
  config.eos_tokens = Tokens(json, "eos_token_id", kMaxVocab);
  json.MustBe("num_beams", int64_t{1}, "beam search");
  FATHOM_TRY(json.Finish(kIgnoredGenerationKeys));
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return ParseModelConfig(text, path);
}

Result<GenerationConfig> LoadGenerationConfig(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  Result<std::string> text = ReadText(path);
  if (!text) {
    if (text.error().code == Code::kNotFound) return GenerationConfig{};
    return tl::unexpected<Error>(std::move(text.error()));
  }
  return ParseGenerationConfig(*text, path);
}

Status OverrideRope(ModelConfig& config, const ops::RopeSpec& scaling) {
  ops::RopeSpec rope = scaling;
  rope.dim = config.rope.dim;
  rope.theta = config.rope.theta;
  int64_t context = config.native_context;
  if (rope.scaling != RopeScaling::kNone) {
    if (rope.original_positions == 0) rope.original_positions = config.native_context;
    context = Stretched(rope);
  }
  if (context > kMaxPosition) {
    return Err(Code::kInvalidArgument,
               "--rope-scaling: {} x {} tokens exceed the longest context of {}",
               rope.original_positions, rope.factor, kMaxPosition);
  }
  config.rope = rope;
  config.max_context = context;
  return {};
}

}  // namespace fathom::model
