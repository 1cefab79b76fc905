// Loading from a directory: plans, refusals, and files that somebody broke.
#include "model/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "model/rope_scaling.h"
#include "model/test_runner.h"
#include "ops/onednn.h"

namespace fathom::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kVocab = 32, kHidden = 32, kIntermediate = 48, kHeads = 2, kHeadDim = 16;

// A safetensors file of these header entries, separated by commas, and bytes.
std::string FileOf(const std::string& entries, const std::string& data) {
  std::string text = "{" + entries + "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as writers do
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  return file + text + data;
}

// A Llama of one layer, small enough to be broken a thousand times.
class TinyLlama {
 public:
  TinyLlama() {
    config = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu",
      "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
      "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false})";
    Add("model.embed_tokens.weight", {kVocab, kHidden});
    Add("lm_head.weight", {kVocab, kHidden});
    Add("model.norm.weight", {kHidden});
    const std::string layer = "model.layers.0.";
    Add(layer + "input_layernorm.weight", {kHidden});
    Add(layer + "post_attention_layernorm.weight", {kHidden});
    Add(layer + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden});
    Add(layer + "self_attn.k_proj.weight", {kHeadDim, kHidden});
    Add(layer + "self_attn.v_proj.weight", {kHeadDim, kHidden});
    Add(layer + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
    Add(layer + "mlp.gate_proj.weight", {kIntermediate, kHidden});
    Add(layer + "mlp.up_proj.weight", {kIntermediate, kHidden});
    Add(layer + "mlp.down_proj.weight", {kHidden, kIntermediate});
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    const size_t begin = data.size();
    for (int64_t i = 0; i < elements; ++i) {
      const uint16_t value = F32ToBf16(static_cast<float>(random_() % 200) / 500.0F - 0.2F);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":{},"data_offsets":[{},{}]}})",
                          header.empty() ? "" : ",", name, ShapeText(shape), begin, data.size());
  }
  std::string File() const { return FileOf(header, data); }

  std::string config, header, data;

 private:
  std::mt19937 random_{42};
};

class LoadTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fmt::format("{}/load_{}_{}", testing::TempDir(), info->name(), getpid());
    fs::create_directories(dir_);
    Write(tiny_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Write(const TinyLlama& tiny) {
    WriteFile("config.json", tiny.config);
    WriteFile("model.safetensors", tiny.File());
  }
  void WriteFile(std::string_view name, const std::string& text) {
    std::ofstream(fmt::format("{}/{}", dir_, name), std::ios::binary) << text;
  }
  Result<LoadedModel> Load(const LoadOptions& options = {}) {
    return LoadModel(dir_, options, *device_, *ops::SelectCpu("").value());
  }
  std::string ErrorOf(const LoadOptions& options = {}) {
    const auto loaded = Load(options);
    return loaded ? "loaded" : loaded.error().message;
  }

  TinyLlama tiny_;
  std::string dir_;
  std::unique_ptr<ops::Device> device_ = ops::MakeCpuDevice();
};

TEST_F(LoadTest, PlansBeforeLoading) {
  LoadOptions options;
  int plans = 0;
  uint64_t done = 0, total = 0;
  options.on_plan = [&](const cost::MemoryPlan& plan) {
    ++plans;
    EXPECT_EQ(done, 0u);
    EXPECT_THAT(plan.Table(), HasSubstr("KV pages"));
    EXPECT_THAT(plan.Table(), HasSubstr("attention"));
  };
  options.progress = [&](uint64_t d, uint64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  };
  const auto loaded = Load(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(plans, 1);
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, tiny_.data.size());
  EXPECT_EQ(loaded->memory.sequence_tokens, 64);
  EXPECT_EQ(loaded->model->max_context_tokens(), 64);
}

// What is planned is what is allocated, in every architecture.
TEST(LoadGolden, PlannedBytesAreAllocatedBytes) {
  for (const char* name : {"deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "qwen2", "llama"}) {
    for (const auto& [precision, gemm] : {std::pair{ops::Precision::kF32, ops::Gemm::kNative},
                                          {ops::Precision::kBF16, ops::Gemm::kNative},
                                          {ops::Precision::kF32, ops::Gemm::kOneDnn},
                                          {ops::Precision::kBF16, ops::Gemm::kOneDnn}}) {
      const kernels::cpu::KernelTable& cpu = *ops::SelectCpu("").value();
      if (gemm == ops::Gemm::kOneDnn && !ops::onednn::Check(precision, cpu)) continue;
      const std::string directory = fmt::format("{}/tests/golden/{}", FATHOM_SOURCE_DIR, name);
      const ModelConfig config = LoadModelConfig(directory).value();
      const Checkpoint checkpoint = std::move(Checkpoint::Open(directory).value());
      const auto device = ops::MakeCpuDevice();
      LoadOptions options;
      options.precision = precision;
      options.gemm = gemm;
      const auto model = LoadForTest(directory, options, *device);
      WeightStore planned(checkpoint, config.fp8, precision, gemm);
      WeightStore loaded(checkpoint, config.fp8, precision, gemm, *device, cpu, nullptr);
      ASSERT_TRUE(model->LoadWeights(planned));
      ASSERT_TRUE(model->LoadWeights(loaded));
      for (size_t g = 0; g < static_cast<size_t>(WeightGroup::kCount); ++g) {
        const auto group = static_cast<WeightGroup>(g);
        EXPECT_EQ(planned.bytes(group), loaded.bytes(group)) << name << " " << NameOf(group);
      }
    }
  }
}

// Tensors dealt out over three shards, so that every expert lies in all of them.
TEST_F(LoadTest, ShardsComputeTheSame) {
  const GoldenCase golden("deepseek_v3");
  const Checkpoint whole = std::move(Checkpoint::Open(golden.directory).value());
  const MappedFile file =
      std::move(MappedFile::Open(golden.directory + "/model.safetensors").value());
  constexpr size_t kShards = 3;
  std::array<std::string, kShards> headers, data;
  std::string weight_map;
  size_t next = 0;
  for (const auto& [name, tensor] : whole.tensors()) {
    const size_t shard = next++ % kShards;
    const size_t begin = data[shard].size();
    data[shard] += file.text().substr(tensor.info.offset, tensor.info.bytes);
    headers[shard] +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                    headers[shard].empty() ? "" : ",", name, NameOf(tensor.info.dtype),
                    ShapeText(tensor.info.shape), begin, data[shard].size());
    weight_map +=
        fmt::format(R"({}"{}":"part{}.safetensors")", weight_map.empty() ? "" : ",", name, shard);
  }
  fs::remove(dir_ + "/model.safetensors");
  fs::copy_file(golden.directory + "/config.json", dir_ + "/config.json",
                fs::copy_options::overwrite_existing);
  WriteFile("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{{}}}}})", weight_map));
  for (size_t shard = 0; shard < kShards; ++shard) {
    WriteFile(fmt::format("part{}.safetensors", shard), FileOf(headers[shard], data[shard]));
  }
  std::array<std::vector<float>, 2> logits;
  for (size_t i = 0; i < 2; ++i) {
    const auto model = LoadForTest(i == 0 ? golden.directory : dir_, {}, *device_);
    ASSERT_NE(model, nullptr);
    TestRunner runner(*model, {.device = device_.get(), .max_tokens = 64});
    logits[i] = runner.Run(0, golden.ids.first(20), 20, 20);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_F(LoadTest, RefusesWhatDoesNotFit) {
  LoadOptions options;
  options.max_memory_bytes = uint64_t{1} << 20;
  const std::string error = ErrorOf(options);
  EXPECT_THAT(error, HasSubstr("does not fit"));
  EXPECT_THAT(error, HasSubstr("--max-memory"));
  EXPECT_THAT(error, HasSubstr("are missing"));
  EXPECT_THAT(error, HasSubstr("activations"));
  EXPECT_FALSE(PlanModelMemory(dir_, options));
  options.max_memory_bytes.reset();
  options.context_tokens = 65;
  EXPECT_THAT(ErrorOf(options), HasSubstr("65 tokens"));
  options.context_tokens = 65 * 2;
  options.rope_scaling = ParseRopeScaling("linear,factor=4").value();
  EXPECT_EQ(ErrorOf(options), "loaded");
  options.kv_dtype = DType::kF16;
  EXPECT_THAT(ErrorOf(options), HasSubstr("BF16 and F32"));
  options.kv_dtype = DType::kBF16;
  options.page_tokens = 48;
  EXPECT_THAT(ErrorOf(options), HasSubstr("16, 32, 64 or 128"));
}

// The base changes past --rope-scaling's own original length, not past the file's.
TEST_F(LoadTest, DynamicRopeFollowsItsOriginalLength) {
  LoadOptions options;
  options.rope_scaling = ParseRopeScaling("dynamic,factor=4,original=16").value();
  const auto loaded = Load(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->model->max_context_tokens(), 64);
  EXPECT_EQ(loaded->model->ChooseRope(16)->row, loaded->model->ChooseRope(1)->row);
  EXPECT_NE(loaded->model->ChooseRope(17)->row, loaded->model->ChooseRope(16)->row);
  EXPECT_NE(loaded->model->ChooseRope(17)->key, loaded->model->ChooseRope(16)->key);
}

TEST_F(LoadTest, RefusesTensorsThatDoNotAgree) {
  TinyLlama extra;
  extra.Add("model.layers.0.self_attn.q_proj.bias", {kHidden});
  Write(extra);
  EXPECT_THAT(ErrorOf(), HasSubstr("q_proj.bias"));

  TinyLlama renamed;
  renamed.header.replace(renamed.header.find("k_proj"), 6, "j_proj");
  Write(renamed);
  EXPECT_THAT(ErrorOf(), HasSubstr("k_proj.weight is missing"));

  TinyLlama reshaped;
  reshaped.header.replace(reshaped.header.find("[32, 48]"), 8, "[48, 32]");
  Write(reshaped);
  EXPECT_THAT(ErrorOf(), HasSubstr("has shape [48, 32], expected [32, 48]"));

  TinyLlama rotary;
  rotary.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});
  Write(rotary);
  EXPECT_EQ(ErrorOf(), "loaded");
}

TEST_F(LoadTest, RefusesAbsurdConfigs) {
  const auto with = [&](std::string_view from, std::string_view to) {
    TinyLlama tiny;
    const size_t at = tiny.config.find(from);
    EXPECT_NE(at, std::string::npos);
    tiny.config.replace(at, from.size(), to);
    Write(tiny);
    return ErrorOf();
  };
  EXPECT_THAT(with("\"vocab_size\": 32", "\"vocab_size\": 16777216"), HasSubstr("expected [1677"));
  EXPECT_THAT(with("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 4096"),
              HasSubstr("layers.1"));
  EXPECT_THAT(with("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 1073741824"),
              HasSubstr("does not fit"));
  EXPECT_THAT(with("\"rms_norm_eps\": 1e-5", "\"rms_norm_eps\": -1"), HasSubstr("rms_norm_eps"));
}

// 1,000 one-byte changes anywhere and truncations: an error with a message, or a model that runs.
TEST_F(LoadTest, SurvivesMutations) {
  std::mt19937 random(1);
  const std::string good = tiny_.File();
  const size_t header = good.size() - tiny_.data.size();
  int loaded_count = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string config = tiny_.config;
    std::string file = good;
    switch (i % 4) {
      case 0:
        config[random() % config.size()] = static_cast<char>(random() % 256);
        break;
      case 1:
        file.resize(random() % file.size());
        break;
      case 2:
        file[random() % header] ^= static_cast<char>(1U << (random() % 8));
        break;
      default:
        file[random() % file.size()] = static_cast<char>(random() % 256);
    }
    WriteFile("config.json", config);
    WriteFile("model.safetensors", file);
    LoadOptions options;
    options.max_step = {.num_tokens = 8, .num_sequences = 2, .num_logits = 2};
    const auto loaded = Load(options);
    if (!loaded) {
      ASSERT_FALSE(loaded.error().message.empty());
      continue;
    }
    ++loaded_count;
    TestRunner runner(*loaded->model, {.device = device_.get(), .max_tokens = 16});
    const std::vector<int32_t> tokens = {1, 2, 3};
    const auto logits = runner.Run(0, tokens, 3, 3);
    ASSERT_EQ(logits.size(), tokens.size() * static_cast<size_t>(loaded->model->vocab_size()));
  }
  EXPECT_GT(loaded_count, 100);
  EXPECT_LT(loaded_count, 900);
}

}  // namespace
}  // namespace fathom::model
