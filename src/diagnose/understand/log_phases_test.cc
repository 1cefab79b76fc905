#include "diagnose/understand/log_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/diagnosis.h"
#include "diagnose/report/text_report.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(LogPhases, SglangNamesTheBatch) {
  const auto phases = FindLogPhases(ReadText(
      "[2025-12-26 06:08:40 TP0] Prefill batch, #new-seq: 1, #new-token: 158, #cached-token: 42, "
      "token usage: 0.08, #running-req: 31, #queue-req: 0, input throughput (token/s): 500.0\n"
      "[2025-12-26 06:08:41 TP0] Decode batch, #running-req: 4, #token: 1411, token usage: 0.00, "
      "cuda graph: True, gen throughput (token/s): 400.0, #queue-req: 0\n"
      "[2025-12-26 06:08:42 TP0] Decode batch, #running-req: 8, #token: 1451, token usage: 0.00, "
      "cuda graph: True, gen throughput (token/s): 200.0, #queue-req: 0\n"
      "[2025-12-26 06:08:43 TP0] Decode batch, #running-req: 2, #token: 1451, token usage: 0.00, "
      "cuda graph: True, gen throughput (token/s): 100.0, #queue-req: 0\n"));
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_FALSE(phases[0].windows);
  EXPECT_EQ(phases[0].lines, 1u);
  EXPECT_EQ(phases[0].new_tokens, 158);
  EXPECT_EQ(phases[0].cached_tokens, 42);
  EXPECT_EQ(phases[0].prompt_tokens_per_s, 500);
  EXPECT_TRUE(std::isnan(phases[0].token_ms));
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].lines, 3u);
  EXPECT_DOUBLE_EQ(phases[1].token_ms, 20);  // of 10, 40 and 20 ms
  EXPECT_DOUBLE_EQ(phases[1].worst_token_ms, 40);
}

TEST(LogPhases, VllmStatesWindows) {
  const auto line = [](int second, double prompt, double decode, int running) {
    return fmt::format(
        "INFO 09-26 11:20:{:02} [loggers.py:127] Engine 000: Avg prompt throughput: {:.1f} "
        "tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: 1.0%, Prefix cache hit rate: 25.0%\n",
        second, prompt, decode, running);
  };
  const Timeline t = ReadText(line(0, 900, 0, 1) + line(10, 100, 50, 5) + line(20, 0, 80, 4) +
                              line(30, 0, 0, 0) + line(40, 0, 40, 4));
  const auto phases = FindLogPhases(t);
  ASSERT_EQ(phases.size(), 4u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].lines, 2u);
  EXPECT_EQ(phases[1].lines_of_source, 5u);
  EXPECT_DOUBLE_EQ(phases[1].decode_tokens_per_s, 60);
  EXPECT_DOUBLE_EQ(phases[1].worst_token_ms, 100);
  EXPECT_EQ(phases[2].phase, Phase::kMixed);
  EXPECT_TRUE(phases[2].windows);
  EXPECT_EQ(phases[3].phase, Phase::kUnknown);
  EXPECT_EQ(phases[3].lines, 1u);
}

TEST(LogPhases, AreNoSteps) {
  const Diagnosis d =
      Diagnose(ReadFile("logs/sglang_deepseek_v3_decode_tp0.log"), Thresholds::Default());
  EXPECT_TRUE(d.steps.all.empty());
  const std::string text = TextReport(d, Language::kEnglish, {});
  EXPECT_THAT(text, HasSubstr("decode by the log: 8 batches"));
  EXPECT_THAT(text, HasSubstr("a token every 9.05 ms"));
  EXPECT_THAT(text, HasSubstr("not single steps"));
  EXPECT_THAT(text, Not(HasSubstr("no steps were found")));
}

TEST(LogPhases, OtherLogsSayNothing) {
  const Diagnosis d = Diagnose(ReadFile("logs/nccl_debug_info.log"), Thresholds::Default());
  EXPECT_TRUE(d.log_phases.empty());
  EXPECT_THAT(TextReport(d, Language::kEnglish, {}), HasSubstr("no steps were found"));
}

}  // namespace
}  // namespace fathom::diagnose
