#include "model/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "model/test_runner.h"
#include "ops/deferred_device.h"

namespace fathom::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class VerifyTest : public testing::TestWithParam<const char*> {
 protected:
  VerifyTest() : golden_(GetParam()) {}
  std::unique_ptr<Decoder> Load(ops::Precision precision, const std::string& directory) {
    LoadOptions options;
    options.precision = precision;
    options.kv_dtype = precision == ops::Precision::kF32 ? DType::kF32 : DType::kBF16;
    return LoadForTest(directory, options, *cpu_);
  }
  StepRunner::Setup On(ops::Device& device) {
    return {.device = &device, .pool = &pool_, .cpu = ops::SelectCpu("").value()};
  }

  GoldenCase golden_;
  std::unique_ptr<ops::Device> cpu_ = ops::MakeCpuDevice();
  ThreadPool pool_{1, 0};
};

TEST_P(VerifyTest, AgreesWithItself) {
  const auto reference = Load(ops::Precision::kF32, golden_.directory);
  const auto served = Load(ops::Precision::kBF16, golden_.directory);
  ops::DeferredDevice late;
  const VerifyOptions options;
  const auto report =
      Verify(*reference, On(*cpu_), *served, On(late), golden_.ids.first(40), options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->first_divergent) << VerifyTable(*report, options);
  EXPECT_GT(report->compared_tokens, 20);
  EXPECT_THAT(VerifyTable(*report, options), HasSubstr("agree within"));

  const auto twin = Load(ops::Precision::kF32, golden_.directory);
  const auto same =
      Verify(*reference, On(*cpu_), *twin, On(*cpu_), golden_.ids.first(40), {.tolerance = 0});
  ASSERT_TRUE(same);
  EXPECT_FALSE(same->first_divergent);
  EXPECT_TRUE(same->reroutes.empty());
}

// A checkpoint with one weight zeroed is named by the op that uses it.
TEST_P(VerifyTest, NamesTheFirstDivergentOp) {
  const fs::path broken = fs::path(testing::TempDir()) / fmt::format("verify_{}", getpid());
  fs::remove_all(broken);
  fs::create_directories(broken);
  fs::copy_file(golden_.directory + "/config.json", broken / "config.json");
  const fs::path file = broken / "model.safetensors";
  fs::copy_file(fs::canonical(golden_.directory + "/model.safetensors"), file);
  const Checkpoint checkpoint = std::move(Checkpoint::Open(golden_.directory).value());
  const TensorInfo& info = checkpoint.Find("model.layers.1.self_attn.o_proj.weight")->info;
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(info.offset));
  stream << std::string(info.bytes, '\0');
  stream.close();

  const auto reference = Load(ops::Precision::kF32, golden_.directory);
  const auto served = Load(ops::Precision::kF32, broken.string());
  const VerifyOptions options{.tolerance = 1e-3};
  const auto report =
      Verify(*reference, On(*cpu_), *served, On(*cpu_), golden_.ids.first(20), options);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_TRUE(report->first_divergent);
  const VerifyOp& first = report->ops[*report->first_divergent];
  EXPECT_EQ(first.op, event::Op::kOutProj);
  EXPECT_EQ(first.layer, 1);
  EXPECT_THAT(VerifyTable(*report, options), HasSubstr("first to diverge: layer 1, out_proj"));
  fs::remove_all(broken);
}

INSTANTIATE_TEST_SUITE_P(Cases, VerifyTest,
                         testing::Values("deepseek_v2_lite", "deepseek_v3", "llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fathom::model
