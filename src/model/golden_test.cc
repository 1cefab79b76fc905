// Logits of the golden checkpoints against an independent implementation, at every position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/deepseek.h"
#include "model/test_runner.h"
#include "tests/tolerances.h"

namespace fathom::model {
namespace {

using tolerances::kGoldenBf16;
using tolerances::kGoldenF32;
using tolerances::kNearTie;

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
  static std::unique_ptr<Decoder> Load(const GoldenCase& golden, ops::Precision precision,
                                       ops::Device& device) {
    LoadOptions options;
    options.precision = precision;
    options.kv_dtype = precision == ops::Precision::kF32 ? DType::kF32 : DType::kBF16;
    options.rope_length_step = 1;
    return LoadForTest(golden.directory, options, device);
  }

  static std::vector<float> Logits(const GoldenCase& golden, Decoder& model, ops::Device& device,
                                   size_t chunk, size_t generated_from) {
    const auto rope = model.ChooseRope(static_cast<int64_t>(golden.ids.size()));
    EXPECT_TRUE(rope) << rope.error().message;
    TestRunner runner(model, {.device = &device});
    return runner.Run(0, golden.ids, chunk, generated_from, rope->row);
  }

  void CheckF32(size_t chunk, size_t generated_from) {
    const GoldenCase golden(GetParam());
    const auto device = ops::MakeCpuDevice();
    const auto model = Load(golden, ops::Precision::kF32, *device);
    ASSERT_NE(model, nullptr);
    const std::vector<float> logits = Logits(golden, *model, *device, chunk, generated_from);
    const double worst = WorstError(logits, golden.Span<float>("logits"), golden.ids.size(),
                                    [](size_t) { return true; });
    RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
    EXPECT_LE(worst, kGoldenF32);
  }
};

TEST_P(Golden, PromptInF32) { CheckF32(600, 600); }

TEST_P(Golden, ChunksThenGeneratedInF32) { CheckF32(100, 350); }

// What rounding to bf16 does to routing. A token is `turned` when a decision of its own falls the
// other way: only a near-tie may. It is `touched` when it is turned, or when a later layer attends
// to a touched token with a weight that golden data call attending.
class Routes {
 public:
  Routes(const GoldenCase& golden, Decoder& model)
      : golden_(golden), model_(model), touched_(golden.ids.size()) {
    model_.set_probe([this](event::Op op, int layer, const TensorView& chosen, ops::Context&) {
      if (op != event::Op::kGate) return;
      for (int64_t row = 0; row < chosen.shape[0]; ++row) {
        const int32_t* experts = chosen.As<int32_t>() + row * chosen.stride[0];
        auto& layer_routes = chosen_[layer];
        layer_routes.emplace_back(experts, experts + chosen.shape[1]);
        std::sort(layer_routes.back().begin(), layer_routes.back().end());
      }
    });
  }
  ~Routes() { model_.set_probe(nullptr); }
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

  // After the pass: names what was turned, fails for a decision that was clear.
  void Compare() {
    for (const auto& [layer, routes] : chosen_) {
      ASSERT_EQ(routes.size(), touched_.size());
      if (const std::string name = fmt::format("attends.{}", layer); golden_.Has(name)) {
        const auto pairs = golden_.Span<int32_t>(name);
        const std::vector<bool> before = touched_;
        for (size_t i = 0; i < pairs.size(); i += 2) {
          if (before[static_cast<size_t>(pairs[i + 1])]) {
            touched_[static_cast<size_t>(pairs[i])] = true;
          }
        }
      }
      const auto expected = golden_.Span<int32_t>(fmt::format("routes.{}", layer));
      const auto margins = golden_.Span<float>(fmt::format("margins.{}", layer));
      for (size_t p = 0; p < routes.size(); ++p) {
        const size_t top_k = routes[p].size();
        if (std::equal(routes[p].begin(), routes[p].end(), &expected[p * top_k])) continue;
        EXPECT_TRUE(margins[p] < kNearTie || touched_[p])
            << "token " << p << " of layer " << layer << " by " << margins[p];
        turned_ += fmt::format("{}{}@{}", turned_.empty() ? "" : " ", p, layer);
        touched_[p] = true;
      }
    }
  }
  bool touched(size_t position) const { return touched_[position]; }
  const std::string& turned() const { return turned_; }  // "token@layer ..."

 private:
  const GoldenCase& golden_;
  Decoder& model_;
  std::map<int, std::vector<std::vector<int32_t>>> chosen_;  // by layer, by token
  std::vector<bool> touched_;
  std::string turned_;
};

TEST_P(Golden, Bf16) {
  const GoldenCase golden(GetParam());
  const size_t positions = golden.ids.size();
  const auto device = ops::MakeCpuDevice();
  const auto model = Load(golden, ops::Precision::kBF16, *device);
  ASSERT_NE(model, nullptr);
  Routes routes(golden, *model);
  const std::vector<float> logits = Logits(golden, *model, *device, 128, 400);
  routes.Compare();
  const auto judged = [&](size_t p) { return !routes.touched(p); };
  size_t near_ties = 0;
  for (size_t p = 0; p < positions; ++p) near_ties += judged(p) ? 0 : 1;
  const double worst = WorstError(logits, golden.Span<float>("logits"), positions, judged);
  RecordProperty("turned", routes.turned());
  RecordProperty("not_judged", static_cast<int>(near_ties));
  RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
  EXPECT_LE(near_ties, positions / 10);
  EXPECT_LE(worst, kGoldenBf16);
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
  EXPECT_LE(WorstError(main, golden.Span<float>("logits"), golden.ids.size(), judge), kGoldenF32);
  EXPECT_LE(WorstError(drafts, golden.Span<float>("mtp_logits"), static_cast<size_t>(slots), judge),
            kGoldenF32);
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
    EXPECT_LE(worst, f32 ? kGoldenF32 : kGoldenBf16);
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
