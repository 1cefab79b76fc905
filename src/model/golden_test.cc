// Logits of the golden checkpoints against an independent implementation, at every position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/deepseek.h"
#include "model/test_runner.h"
#include "ops/deferred_device.h"

namespace fathom::model {
namespace {

// f32: the reference sums in f64, so what is left is the rounding of sums of a few hundred terms
// through a few layers. bf16: inputs of each product have 8 bits, 2^-9 a rounding.
constexpr double kF32Tolerance = 5e-5;
constexpr double kBf16Tolerance = 2e-2;
// A routing decision closer than this may fall either way in bf16, whose rounding moves a score by
// about that much; those positions are counted and not judged. What attends to a token that was
// routed otherwise inherits part of its difference, hence the allowance for a few of the others.
constexpr float kNearTie = 4e-3F;
constexpr double kBf16Inherited = 4e-2;
constexpr double kInheritedShare = 0.01;

// The worst ||value - expected|| / ||expected|| over positions that `counts` says to judge.
template <class Counts>
double WorstError(std::span<const float> value, std::span<const float> expected, size_t positions,
                  Counts&& counts) {
  const size_t vocab = expected.size() / positions;
  double worst = 0;
  for (size_t p = 0; p < positions; ++p) {
    if (!counts(p)) continue;
    double distance = 0, norm = 0;
    for (size_t i = p * vocab; i < (p + 1) * vocab; ++i) {
      const double difference = double{value[i]} - expected[i];
      distance += difference * difference;
      norm += double{expected[i]} * expected[i];
    }
    const double error = std::sqrt(distance / norm);
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  }
  return worst;
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  std::vector<float> Logits(const GoldenCase& golden, ops::Precision precision, size_t chunk,
                            size_t generated_from) {
    const auto device = ops::MakeCpuDevice();
    LoadOptions options;
    options.precision = precision;
    options.kv_dtype = precision == ops::Precision::kF32 ? DType::kF32 : DType::kBF16;
    options.rope_length_step = 1;
    const auto model = LoadForTest(golden.directory, options, *device);
    if (model == nullptr) return {};
    const auto rope = model->ChooseRope(static_cast<int64_t>(golden.ids.size()));
    EXPECT_TRUE(rope) << rope.error().message;
    TestRunner runner(*model, {.device = device.get()});
    return runner.Run(0, golden.ids, chunk, generated_from, rope->row);
  }
};

TEST_P(Golden, PromptInF32) {
  const GoldenCase golden(GetParam());
  const std::vector<float> logits =
      Logits(golden, ops::Precision::kF32, golden.ids.size(), golden.ids.size());
  const double worst = WorstError(logits, golden.Span<float>("logits"), golden.ids.size(),
                                  [](size_t) { return true; });
  RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
  EXPECT_LE(worst, kF32Tolerance);
}

TEST_P(Golden, ChunksThenGeneratedInF32) {
  const GoldenCase golden(GetParam());
  const std::vector<float> logits = Logits(golden, ops::Precision::kF32, 100, 350);
  const double worst = WorstError(logits, golden.Span<float>("logits"), golden.ids.size(),
                                  [](size_t) { return true; });
  RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
  EXPECT_LE(worst, kF32Tolerance);
}

TEST_P(Golden, Bf16) {
  const GoldenCase golden(GetParam());
  const size_t positions = golden.ids.size();
  std::vector<bool> near_tie(positions);
  for (int layer = 0; layer < 16; ++layer) {
    const std::string name = fmt::format("margins.{}", layer);
    if (!golden.Has(name)) continue;
    const auto margins = golden.Span<float>(name);
    for (size_t p = 0; p < std::min(positions, margins.size()); ++p) {
      near_tie[p] = near_tie[p] || margins[p] < kNearTie;
    }
  }
  const std::vector<float> logits = Logits(golden, ops::Precision::kBF16, 128, 400);
  const auto expected = golden.Span<float>("logits");
  size_t judged = 0, beyond = 0;
  double worst = 0;
  for (size_t p = 0; p < positions; ++p) {
    if (near_tie[p]) continue;
    const double error = WorstError(logits, expected, positions, [p](size_t q) { return q == p; });
    ++judged;
    if (error > kBf16Tolerance) ++beyond;
    worst = std::max(worst, error);
  }
  RecordProperty("near_ties", static_cast<int>(positions - judged));
  RecordProperty("inherited", static_cast<int>(beyond));
  RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
  EXPECT_GT(judged, positions / 2);
  EXPECT_LE(static_cast<double>(beyond), kInheritedShare * static_cast<double>(judged));
  EXPECT_LE(worst, beyond > 0 ? kBf16Inherited : kBf16Tolerance);
}

TEST(GoldenMtp, DraftLogits) {
  const GoldenCase golden("deepseek_v3");
  const auto device = ops::MakeCpuDevice();
  LoadOptions options;
  options.precision = ops::Precision::kF32;
  options.kv_dtype = DType::kF32;
  options.mtp = true;
  const auto model = LoadForTest(golden.directory, options, *device);
  ASSERT_NE(model, nullptr);
  ASSERT_EQ(model->cache_formats().size(), 2u);
  auto& deepseek = dynamic_cast<Deepseek&>(*model);
  const auto positions = static_cast<int64_t>(golden.ids.size());
  const int64_t hidden_size = model->config().hidden_size;
  std::vector<float> states(static_cast<size_t>(positions * hidden_size));
  TensorView hidden = TensorView::Contiguous(states.data(), DType::kF32, {positions, hidden_size});

  TestRunner main_runner(*model, {.device = device.get()});
  const TestRunner::Piece all{.tokens = {golden.ids.begin(), golden.ids.end()}};
  const std::vector<float> main = TestRunner::Checked(main_runner.runner().Step(
      {&all, 1}, StepRunner::Rows::kAll,
      [&](const ops::StepBucket& bucket) { return deepseek.Plan(bucket); },
      [&](const StepPlan& plan, const ops::StepInputs& inputs,
          std::span<const ops::CacheView> caches, ops::Context& context, const TensorView& logits) {
        return deepseek.ForwardHidden(plan, inputs, caches, context, hidden, logits);
      }));

  // Two chunks of a prompt, then drafts one by one.
  TestRunner draft_runner(*model, {.device = device.get()});
  std::vector<float> drafts;
  const int64_t slots = positions - 1;
  for (int64_t begin = 0; begin < slots;) {
    const bool prompt = begin < 500;
    const int64_t end = std::min(slots, prompt ? begin + 250 : begin + 1);
    const TestRunner::Piece next{
        .tokens = {golden.ids.begin() + begin + 1, golden.ids.begin() + end + 1},
        .role = prompt ? ops::Role::kPrompt : ops::Role::kGenerated};
    const std::vector<float> logits = TestRunner::Checked(draft_runner.runner().Step(
        {&next, 1}, StepRunner::Rows::kAll,
        [&](const ops::StepBucket& bucket) { return deepseek.DraftPlan(bucket); },
        [&](const StepPlan& plan, const ops::StepInputs& inputs,
            std::span<const ops::CacheView> caches, ops::Context& context, const TensorView& out) {
          TensorView slice = hidden;
          slice.data = states.data() + begin * hidden_size;
          slice.shape[0] = end - begin;
          return deepseek.Draft(plan, inputs, caches, context, slice, out);
        }));
    drafts.insert(drafts.end(), logits.begin(), logits.end());
    begin = end;
  }
  const auto judge = [](size_t) { return true; };
  EXPECT_LE(WorstError(main, golden.Span<float>("logits"), golden.ids.size(), judge),
            kF32Tolerance);
  EXPECT_LE(WorstError(drafts, golden.Span<float>("mtp_logits"), static_cast<size_t>(slots), judge),
            kF32Tolerance);
}

// The trained models that ship, at the positions that their golden files hold.
class Shipped : public testing::TestWithParam<const char*> {};

TEST_P(Shipped, Logits) {
  const GoldenCase golden(GetParam());
  const auto positions = golden.Span<int32_t>("positions");
  const auto expected = golden.Span<float>("logits");
  const std::string directory = fmt::format("{}/models/{}", FATHOM_SOURCE_DIR, GetParam());
  const auto device = ops::MakeCpuDevice();
  for (const ops::Precision precision : {ops::Precision::kF32, ops::Precision::kBF16}) {
    const bool f32 = precision == ops::Precision::kF32;
    LoadOptions options;
    options.precision = precision;
    options.kv_dtype = f32 ? DType::kF32 : DType::kBF16;
    const auto model = LoadForTest(directory, options, *device);
    ASSERT_NE(model, nullptr);
    TestRunner runner(*model, {.device = device.get()});
    const std::vector<float> all = runner.Run(0, golden.ids, 128, 200);
    const auto vocab = static_cast<size_t>(model->vocab_size());
    std::vector<float> logits;
    for (const int32_t p : positions) {
      const float* row = all.data() + static_cast<size_t>(p) * vocab;
      logits.insert(logits.end(), row, row + vocab);
    }
    const double worst =
        WorstError(logits, expected, positions.size(), [](size_t) { return true; });
    RecordProperty(f32 ? "worst_f32" : "worst_bf16", fmt::format("{:.2e}", worst));
    EXPECT_LE(worst, f32 ? kF32Tolerance : kBf16Tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Shipped, testing::Values("tiny-deepseek", "tiny-distill"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GoldenMtp, RefusedWhereThereIsNone) {
  const auto device = ops::MakeCpuDevice();
  LoadOptions options;
  options.mtp = true;
  for (const char* name : {"deepseek_v2", "llama"}) {
    const GoldenCase golden(name);
    const auto loaded = PlanModelMemory(golden.directory, options);
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().message, testing::HasSubstr("multi-token prediction"));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         testing::Values("deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "qwen2",
                                         "qwen2_tied", "qwen2_linear", "qwen2_dynamic",
                                         "qwen2_yarn", "llama", "llama_none", "llama_linear",
                                         "llama_dynamic"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fathom::model
