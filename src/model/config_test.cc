#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "model/rope_scaling.h"

namespace fathom::model {
namespace {

using ::testing::HasSubstr;

// The published values of DeepSeek-R1.
constexpr std::string_view kR1 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
  "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
  "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "weight_block_size": [128, 128]},
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                   "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                   "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "transformers_version": "4.46.3", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280})";

constexpr std::string_view kV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
  "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
  "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
  "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                   "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
                   "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
  "v_head_dim": 128, "vocab_size": 102400})";

constexpr std::string_view kQwen = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02,
  "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 21,
  "model_type": "qwen2", "num_attention_heads": 12, "num_hidden_layers": 28,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})";

constexpr std::string_view kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})";

std::string Replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  const size_t at = result.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return result.replace(at, from.size(), to);
}

ModelConfig Parse(std::string_view text) {
  auto config = ParseModelConfig(text, "config.json");
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(ModelConfig{});
}

TEST(Config, ReadsR1) {
  const ModelConfig c = Parse(kR1);
  EXPECT_EQ(c.architecture, Architecture::kDeepseekV3);
  EXPECT_EQ(c.num_layers, 61);
  EXPECT_EQ(c.num_mtp_layers, 1);
  ASSERT_TRUE(c.mla && c.moe && c.fp8);
  EXPECT_EQ(c.mla->q_lora_rank, 1536);
  EXPECT_EQ(c.mla->qk_head_dim(), 192);
  EXPECT_EQ(c.moe->gate.num_experts, 256);
  EXPECT_EQ(c.moe->gate.method, ops::moe::TopkMethod::kNoauxTc);
  EXPECT_TRUE(c.moe->gate.norm_topk_prob);
  EXPECT_EQ(c.moe->gate.topk_group, 4);
  EXPECT_EQ(c.fp8->block_rows, 128);
  EXPECT_FALSE(c.IsMoeLayer(2));
  EXPECT_TRUE(c.IsMoeLayer(3));
  EXPECT_EQ(c.native_context, 4096);
  EXPECT_EQ(c.max_context, 163840);
  EXPECT_EQ(c.rope.scaling, ops::RopeScaling::kYarn);
  EXPECT_EQ(c.rope.dim, 64);
  EXPECT_EQ(c.rope.mscale_all_dim, 1.0);
}

TEST(Config, ReadsV2Lite) {
  const ModelConfig c = Parse(kV2Lite);
  EXPECT_EQ(c.mla->q_lora_rank, 0);
  EXPECT_EQ(c.moe->gate.method, ops::moe::TopkMethod::kGreedy);
  EXPECT_FALSE(c.fp8);
  EXPECT_EQ(c.rope.mscale, 0.707);
}

TEST(Config, ReadsQwen) {
  const ModelConfig c = Parse(kQwen);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_EQ(c.rope.scaling, ops::RopeScaling::kNone);
  EXPECT_EQ(c.max_context, 131072);
}

TEST(Config, ReadsLlama) {
  const ModelConfig c = Parse(kLlama);
  EXPECT_EQ(c.rope.scaling, ops::RopeScaling::kLlama3);
  EXPECT_EQ(c.native_context, 8192);
  EXPECT_EQ(c.max_context, 131072);
  EXPECT_EQ(c.eos_tokens, (std::vector<int32_t>{128001, 128008}));
}

TEST(Config, ReadsNewerRopeParameters) {
  const std::string text =
      Replace(Replace(kQwen, R"("rope_theta": 10000)", R"("rope_parameters": {"rope_theta": 1e6,
              "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"),
              R"("torch_dtype")", R"("dtype")");
  const ModelConfig c = Parse(text);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.scaling, ops::RopeScaling::kYarn);
  EXPECT_EQ(c.max_context, 131072);
  EXPECT_FALSE(c.rope.mscale);
}

TEST(Config, RefusesWhatItCannotRun) {
  struct Case {
    std::string_view base, from, to, message;
  };
  const Case cases[] = {
      {kR1, "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV32ForCausalLM"},
      {kR1, R"("ep_size": 1)", R"("index_topk": 2048)", "index_topk"},
      {kR1, R"("model_type": "deepseek_v3")", R"("model_type": "kimi_k2")", "kimi_k2"},
      {kR1, R"("hidden_act": "silu")", R"("hidden_act": "gelu")", "supported: silu"},
      {kR1, R"("quant_method": "fp8")", R"("quant_method": "awq")", "awq"},
      {kR1, R"("fmt": "e4m3")", R"("fmt": "e5m2")", "e5m2"},
      {kR1, "[128, 128]", "[128]", "weight_block_size"},
      {kR1, R"("type": "yarn")", R"("type": "longrope")", "longrope"},
      {kR1, R"("type": "yarn")", R"("type": "yarn", "rope_type": "linear")", "rope_type"},
      {kR1, R"("attention_bias": false)", R"("attention_bias": true)", "attention_bias"},
      {kR1, R"("topk_method": "noaux_tc")", R"("topk_method": "greedy")", "noaux_tc"},
      {kR1, R"("scoring_func": "sigmoid",)", "", "'scoring_func' is missing"},
      {kR1, R"("num_experts_per_tok": 8)", R"("num_experts_per_tok": 200)", "128 experts"},
      {kR1, R"("n_group": 8)", R"("n_group": 7)", "7 groups"},
      {kR1, R"("hidden_size": 7168)", R"("hidden_size": 7168.5)", "7168.5"},
      {kR1, R"("hidden_size": 7168)", R"("hidden_size": 1e30)", "hidden_size"},
      {kR1, R"("hidden_size": 7168)", R"("hidden_size": -1)", "hidden_size"},
      {kR1, R"("hidden_size": 7168)", R"("hidden_size": 1, "hidden_size": 7168)", "twice"},
      {kV2Lite, R"("norm_topk_prob": false,)", "", "norm_topk_prob"},
      {kV2Lite, R"("pretraining_tp": 1)", R"("pretraining_tp": 2)", "pretraining_tp"},
      {kQwen, R"("use_sliding_window": false)", R"("use_sliding_window": true)", "sliding"},
      {kQwen, R"("num_key_value_heads": 2)", R"("num_key_value_heads": 5)", "5 key-value"},
      {kQwen, R"("rope_theta": 10000,)", "", "rope_theta"},
      {kQwen, R"("tie_word_embeddings": false,)", "", "tie_word_embeddings"},
      {kLlama, R"("factor": 8.0, )", "", "'factor' is missing"},
      {kLlama, R"("low_freq_factor": 1.0)", R"("low_freq_factor": 5.0)", "low_freq_factor"},
      {kLlama, R"("low_freq_factor": 1.0)", R"("low_freq": 1.0)", "low_freq_factor"},
      {kLlama, R"("mlp_bias": false)", R"("mlp_bias": true)", "mlp_bias"},
  };
  for (const Case& c : cases) {
    const auto config = ParseModelConfig(Replace(c.base, c.from, c.to), "dir/config.json");
    ASSERT_FALSE(config) << c.to;
    EXPECT_THAT(config.error().message, HasSubstr(c.message)) << c.to;
    EXPECT_THAT(config.error().message, HasSubstr("dir/config.json"));
  }
  for (std::string_view text :
       {"", "[]", "{", "{\"architectures\": 3}", "{\"architectures\": []}"}) {
    EXPECT_FALSE(ParseModelConfig(text, "config.json")) << text;
  }
  EXPECT_FALSE(ParseModelConfig(std::string(100000, '['), "config.json"));
}

// Any one-byte change either fails with a message or gives a config within its bounds.
TEST(Config, SurvivesMutations) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text(i % 2 == 0 ? kR1 : kLlama);
    text[random() % text.size()] = static_cast<char>(random() % 256);
    const auto config = ParseModelConfig(text, "config.json");
    if (!config) {
      EXPECT_FALSE(config.error().message.empty());
      continue;
    }
    EXPECT_GE(config->hidden_size, 1);
    EXPECT_EQ(config->rope.dim % 2, 0);
    EXPECT_GE(config->max_context, 1);
  }
}

TEST(Config, RopeOverrides) {
  ModelConfig c = Parse(kR1);
  ASSERT_TRUE(OverrideRope(c, ParseRopeScaling("none").value()));
  EXPECT_EQ(c.max_context, 4096);
  ASSERT_TRUE(OverrideRope(c, ParseRopeScaling("linear,factor=2").value()));
  EXPECT_EQ(c.max_context, 8192);
  ASSERT_TRUE(OverrideRope(c, ParseRopeScaling("dynamic,factor=4,original=1000").value()));
  EXPECT_EQ(c.max_context, 4000);
  const ops::RopeSpec yarn =
      ParseRopeScaling("yarn,factor=4,original=8192,beta_fast=16,mscale=0.5").value();
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_EQ(yarn.mscale, 0.5);
  ASSERT_TRUE(OverrideRope(c, yarn));
  EXPECT_EQ(c.max_context, 32768);
  EXPECT_EQ(ParseRopeScaling("llama3,factor=8,original=8192,low=1,high=4")->scaling,
            ops::RopeScaling::kLlama3);

  for (const auto& [text, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"ntk", "none, linear"},
           {"", "none, linear"},
           {"linear", "needs 'factor'"},
           {"linear,factor=0.5", "factor"},
           {"linear,factor=nan", "factor"},
           {"linear,factor", "factor"},
           {"linear,factor=2x", "2x"},
           {"linear,factor=2,factor=3", "twice"},
           {"linear,beta_fast=2", "no parameter"},
           {"yarn,factor=2", "needs 'original'"},
           {"yarn,factor=2,original=8.5", "whole"},
           {"llama3,factor=8,original=8192,low=4,high=4", "low < high"}}) {
    const auto scaling = ParseRopeScaling(text);
    ASSERT_FALSE(scaling) << text;
    EXPECT_THAT(scaling.error().message, HasSubstr(message)) << text;
  }
  EXPECT_FALSE(OverrideRope(c, ParseRopeScaling("linear,factor=1000000").value()));
}

TEST(Config, ReadsGenerationConfig) {
  const auto g = ParseGenerationConfig(
      R"({"_from_model_config": true, "bos_token_id": 0, "eos_token_id": [1, 7],
          "do_sample": true, "temperature": 0.6, "top_p": 0.95})",
      "generation_config.json");
  ASSERT_TRUE(g) << g.error().message;
  EXPECT_EQ(g->temperature, 0.6);
  EXPECT_EQ(g->eos_tokens, (std::vector<int32_t>{1, 7}));
  EXPECT_FALSE(ParseGenerationConfig(R"({"num_beams": 4})", "g"));
  EXPECT_FALSE(ParseGenerationConfig(R"({"temperature": "hot"})", "g"));
  EXPECT_FALSE(ParseGenerationConfig(R"({"guidance": 2})", "g"));
}

}  // namespace
}  // namespace fathom::model
