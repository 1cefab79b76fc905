#include "model/benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "event/ring.h"
#include "model/perplexity.h"
#include "model/test_runner.h"

namespace fathom::model {
namespace {

class BenchmarkTest : public testing::Test {
 protected:
  BenchmarkTest() : golden_("deepseek_v2_lite") {
    model_ = LoadForTest(golden_.directory, {}, *device_);
  }
  StepRunner::Setup RunnerSetup(int64_t max_tokens = 0) {
    return {.device = device_.get(),
            .pool = &pool_,
            .cpu = ops::SelectCpu("").value(),
            .max_tokens = max_tokens};
  }

  GoldenCase golden_;
  std::unique_ptr<ops::Device> device_ = ops::MakeCpuDevice();
  ThreadPool pool_{1, 0};
  std::unique_ptr<Decoder> model_;
};

TEST_F(BenchmarkTest, RowsStateWorkAndTime) {
  const auto rows = RunBenchmark(*model_, RunnerSetup(),
                                 {.prompt_tokens = {40},
                                  .chunk_tokens = 16,
                                  .decode_steps = 3,
                                  .batches = {1, 2},
                                  .repeats = 2});
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 3u);
  for (const BenchmarkRow& row : *rows) {
    EXPECT_GT(row.tokens_per_second(), 0);
    EXPECT_GE(row.slowest_seconds, row.seconds);
    EXPECT_GT(row.read_bytes_per_s, 0);
    double bytes = 0;
    for (const OpTotals& op : row.ops) bytes += op.bytes;
    EXPECT_NEAR(bytes, row.total.bytes, 1e-6 * bytes);
    EXPECT_GT(row.ops[static_cast<size_t>(event::Op::kAttention)].flops, 0);
    EXPECT_GT(row.ops[static_cast<size_t>(event::Op::kExperts)].bytes, 0);
  }
  // Two sequences do twice the work of one, but for the sum of their lengths.
  const auto& one = (*rows)[1].ops[static_cast<size_t>(event::Op::kAttention)];
  const auto& two = (*rows)[2].ops[static_cast<size_t>(event::Op::kAttention)];
  EXPECT_NEAR(two.flops / one.flops, 2.0, 1e-3);
}

TEST_F(BenchmarkTest, RefusesWhatTheContextCannotHold) {
  for (const BenchmarkOptions& options :
       {BenchmarkOptions{.prompt_tokens = {1 << 20}}, BenchmarkOptions{.prompt_tokens = {8, 0}},
        BenchmarkOptions{.prompt_tokens = {}},
        BenchmarkOptions{.prompt_tokens = {8}, .batches = {0}},
        BenchmarkOptions{.prompt_tokens = {8}, .decode_steps = 0, .repeats = 0}}) {
    EXPECT_FALSE(RunBenchmark(*model_, RunnerSetup(), options));
  }
}

TEST_F(BenchmarkTest, ARowForEachLengthAndPhaseAskedFor) {
  const auto prefills =
      RunBenchmark(*model_, RunnerSetup(),
                   {.prompt_tokens = {8, 24}, .chunk_tokens = 16, .decode_steps = 0, .repeats = 1});
  ASSERT_TRUE(prefills) << prefills.error().message;
  ASSERT_EQ(prefills->size(), 2u);
  EXPECT_EQ((*prefills)[0].tokens, 8);
  EXPECT_EQ((*prefills)[1].tokens, 24);
  const auto decodes = RunBenchmark(*model_, RunnerSetup(),
                                    {.prompt_tokens = {8, 24}, .decode_steps = 2, .repeats = 0});
  ASSERT_TRUE(decodes) << decodes.error().message;
  ASSERT_EQ(decodes->size(), 2u);
  for (const BenchmarkRow& row : *decodes) EXPECT_EQ(row.role, ops::Role::kGenerated);
}

TEST_F(BenchmarkTest, EventCostCountsTheEventsOfOneOfTwoSteps) {
  const BenchmarkOptions options{.prompt_tokens = {8}, .decode_steps = 4, .repeats = 0};
  const auto cost = MeasureEventCost(*model_, RunnerSetup(), options);
  ASSERT_TRUE(cost) << cost.error().message;
  EXPECT_EQ(cost->pairs, 4);
  EXPECT_GT(cost->off_seconds, 0);
  EXPECT_GT(cost->on_seconds, 0);
  // Every op of a step is one event: as many as a step with events has alone.
  event::Ring ring(1 << 10);
  StepRunner::Setup setup = RunnerSetup(8);
  setup.sink = event::Sink(&ring);
  StepRunner runner = std::move(StepRunner::Make(*model_, setup).value());
  const StepRunner::Piece piece{.tokens = {1}, .role = ops::Role::kGenerated};
  ASSERT_TRUE(runner.Step({&piece, 1}, StepRunner::Rows::kLast));
  EXPECT_DOUBLE_EQ(cost->events_per_step, static_cast<double>(ring.accepted()));
  EXPECT_FALSE(MeasureEventCost(*model_, RunnerSetup(), {.prompt_tokens = {8}, .decode_steps = 0}));
}

TEST_F(BenchmarkTest, LogitsOfAPromptAndWhatFollows) {
  const std::span<const int32_t> ids = golden_.ids.first(40);
  const auto logits = LogitsOf(*model_, RunnerSetup(), ids, 37, 16);
  ASSERT_TRUE(logits) << logits.error().message;
  const auto vocab = static_cast<size_t>(model_->vocab_size());
  ASSERT_EQ(logits->size(), 4 * vocab);
  TestRunner whole(*model_, {.device = device_.get()});
  const std::vector<float> all = whole.Run(0, ids, 16, 37);
  for (size_t i = 0; i < logits->size(); ++i) {
    EXPECT_EQ((*logits)[i], all[36 * vocab + i]) << i;
  }
  EXPECT_FALSE(LogitsOf(*model_, RunnerSetup(), ids, 41, 16));
  EXPECT_FALSE(LogitsOf(*model_, RunnerSetup(), ids, 0, 16));
  const std::array<int32_t, 2> unknown = {0, model_->vocab_size()};
  EXPECT_FALSE(LogitsOf(*model_, RunnerSetup(), unknown, 1, 16));
}

double BitsOf(std::span<const float> logits, int32_t token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return std::log2(sum) - double{logits[static_cast<size_t>(token)]} / std::log(2.0);
}

TEST_F(BenchmarkTest, TokenBitsOverWindows) {
  constexpr int64_t kWindow = 100, kStride = 40, kCount = 230;
  const std::span<const int32_t> ids = golden_.ids.first(kCount);
  StepRunner runner = std::move(StepRunner::Make(*model_, RunnerSetup(kWindow)).value());
  const auto bits = TokenBits(runner, model_->vocab_size(), ids, 0,
                              {.window = kWindow, .stride = kStride, .chunk = 33}, pool_);
  ASSERT_TRUE(bits) << bits.error().message;
  ASSERT_EQ(bits->size(), static_cast<size_t>(kCount - 1));
  const auto vocab = static_cast<size_t>(model_->vocab_size());
  int64_t counted = 1;
  for (int64_t start = 0; counted < kCount; start += kStride) {
    const auto window = ids.subspan(static_cast<size_t>(start),
                                    static_cast<size_t>(std::min(kWindow, kCount - start)));
    TestRunner whole(*model_, {.device = device_.get()});
    const std::vector<float> logits = whole.Run(0, window, kWindow, kWindow);
    const int64_t end = start + static_cast<int64_t>(window.size());
    for (int64_t t = counted; t < end; ++t) {
      const std::span<const float> row(logits.data() + static_cast<size_t>(t - 1 - start) * vocab,
                                       vocab);
      EXPECT_NEAR((*bits)[static_cast<size_t>(t - 1)], BitsOf(row, ids[static_cast<size_t>(t)]),
                  1e-4)
          << "token " << t;
    }
    counted = end;
  }
  EXPECT_FALSE(
      TokenBits(runner, model_->vocab_size(), ids, 0, {.window = 10, .stride = 11}, pool_));
}

TEST_F(BenchmarkTest, WindowBitsDependOnWhatIsInTheWindow) {
  const std::span<const int32_t> ids = golden_.ids.first(120);
  StepRunner runner = std::move(StepRunner::Make(*model_, RunnerSetup(120)).value());
  const int vocab = model_->vocab_size();
  const auto whole = WindowBits(runner, vocab, ids, 1, 0, 50, pool_).value();
  ASSERT_EQ(whole.size(), 119u);
  // Fewer targets are the same ones; the chunks do not matter.
  const auto last = WindowBits(runner, vocab, ids, 100, 0, 33, pool_).value();
  ASSERT_EQ(last.size(), 20u);
  for (size_t i = 0; i < last.size(); ++i) EXPECT_EQ(last[i], whole[99 + i]) << i;
  // The same targets with less before them get other bits.
  const auto less = WindowBits(runner, vocab, ids.last(60), 40, 0, 33, pool_).value();
  ASSERT_EQ(less.size(), 20u);
  for (size_t i = 0; i < less.size(); ++i) EXPECT_NE(less[i], whole[99 + i]) << i;
}

}  // namespace
}  // namespace fathom::model
