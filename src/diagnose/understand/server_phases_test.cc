#include "diagnose/understand/server_phases.h"

#include <fmt/format.h>
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

TEST(ServerPhases, SglangNamesTheBatch) {
  const auto phases = FindServerPhases(ReadText(
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
  EXPECT_EQ(phases[0].unit, PhaseUnit::kBatches);
  EXPECT_EQ(phases[0].count, 1u);
  EXPECT_EQ(phases[0].new_tokens, 158);
  EXPECT_EQ(phases[0].cached_tokens, 42);
  EXPECT_EQ(phases[0].prompt_tokens_per_s, 500);
  EXPECT_TRUE(std::isnan(phases[0].token_ms));
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].count, 3u);
  EXPECT_DOUBLE_EQ(phases[1].token_ms, 20);  // of 10, 40 and 20 ms
  EXPECT_DOUBLE_EQ(phases[1].worst_token_ms, 40);
}

TEST(ServerPhases, VllmStatesWindows) {
  const auto line = [](int second, double prompt, double decode, int running) {
    return fmt::format(
        "INFO 09-26 11:20:{:02} [loggers.py:127] Engine 000: Avg prompt throughput: {:.1f} "
        "tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: 1.0%, Prefix cache hit rate: 25.0%\n",
        second, prompt, decode, running);
  };
  const Timeline t = ReadText(line(0, 900, 0, 1) + line(10, 100, 50, 5) + line(20, 0, 80, 4) +
                              line(30, 0, 0, 0) + line(40, 0, 40, 4));
  const auto phases = FindServerPhases(t);
  ASSERT_EQ(phases.size(), 4u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].count, 2u);
  EXPECT_EQ(phases[1].count_of_source, 5u);
  EXPECT_DOUBLE_EQ(phases[1].decode_tokens_per_s, 60);
  EXPECT_DOUBLE_EQ(phases[1].worst_token_ms, 100);
  EXPECT_EQ(phases[2].phase, Phase::kMixed);
  EXPECT_EQ(phases[2].unit, PhaseUnit::kWindows);
  EXPECT_EQ(phases[3].phase, Phase::kUnknown);
  EXPECT_EQ(phases[3].count, 1u);
}

TEST(ServerPhases, VllmLogsEachStepWhereItIsToldTo) {
  const auto line = [](int number, int context, int context_tokens, int generation, double ms,
                       const char* dummy) {
    return fmt::format(
        "(EngineCore pid=7) INFO 09-26 11:20:{:02} [loggers.py:199] Engine 000: Iteration({}): {} "
        "context requests, {} context tokens, {} generation requests, {} generation tokens, "
        "iteration elapsed time: {:.2f} ms{}, GPU KV cache usage: 12.5%\n",
        number, number, context, context_tokens, generation, generation, ms, dummy);
  };
  const Timeline t =
      ReadText(line(1, 1, 900, 0, 40, "") + line(2, 0, 0, 4, 10, "") + line(3, 0, 0, 4, 12, "") +
               line(4, 1, 300, 4, 30, "") + line(5, 0, 0, 0, 1, " (dummy)"));
  ASSERT_EQ(t.log_lines.size(), 4u);
  EXPECT_DOUBLE_EQ(t.Value(t.log_lines[0], LogField::kKvUsage).value_or(-1), 0.125);
  const auto phases = FindServerPhases(t);
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_DOUBLE_EQ(phases[0].new_tokens, 900);
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].unit, PhaseUnit::kSteps);
  EXPECT_EQ(phases[1].count, 2u);
  EXPECT_EQ(phases[1].count_of_source, 4u);
  EXPECT_DOUBLE_EQ(phases[1].step_ms, 11);
  EXPECT_DOUBLE_EQ(phases[1].running, 4);
  EXPECT_EQ(phases[2].phase, Phase::kMixed);
  EXPECT_DOUBLE_EQ(phases[2].step_ms, 30);
}

TEST(ServerPhases, VllmCountersBetweenScrapes) {
  const auto scrape = [](int second, int prompt, int generated, int running) {
    return fmt::format(
        "# Time: {}\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {}\n"
        "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {}\n"
        "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total {}\n",
        1790000000 + second, running, prompt, generated);
  };
  const auto phases = FindServerPhases(
      ReadText(scrape(0, 100, 50, 1) + scrape(1, 700, 50, 2) + scrape(2, 700, 150, 2) +
               scrape(4, 700, 250, 2) + scrape(5, 10, 0, 0)));  // the server was started again
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_TRUE(phases[0].scraped);
  EXPECT_EQ(phases[0].prompt_tokens_per_s, 600);
  EXPECT_EQ(phases[1].phase, Phase::kDecode);
  EXPECT_EQ(phases[1].count, 2u);
  EXPECT_DOUBLE_EQ(phases[1].decode_tokens_per_s, 75);  // 100 and 50
  EXPECT_DOUBLE_EQ(phases[1].worst_token_ms, 40);
}

TEST(ServerPhases, FathomCountsItsSteps) {
  const auto scrape = [](int second, int prefills, int decodes) {
    return fmt::format(
        "# Time: {}\n# TYPE fathom:step_seconds histogram\n"
        "fathom:step_seconds_count{{phase=\"prefill\"}} {}\n"
        "fathom:step_seconds_sum{{phase=\"prefill\"}} {}\n"
        "fathom:step_seconds_count{{model_name=\"m\",phase=\"decode\"}} {}\n"
        "fathom:step_seconds_sum{{model_name=\"m\",phase=\"decode\"}} {}\n"
        "fathom:step_seconds_count{{phase=\"mixed\"}} 0\n"
        "fathom:step_seconds_sum{{phase=\"mixed\"}} 0\n",
        1790000000 + second, prefills, prefills * 0.25, decodes, decodes * 0.0625);
  };
  const auto phases = FindServerPhases(ReadText(scrape(0, 10, 100) + scrape(10, 14, 132)));
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].phase, Phase::kPrefill);
  EXPECT_EQ(phases[0].unit, PhaseUnit::kSteps);
  EXPECT_EQ(phases[0].count, 4u);
  EXPECT_EQ(phases[0].count_of_source, 36u);
  EXPECT_DOUBLE_EQ(phases[0].step_ms, 250);
  EXPECT_DOUBLE_EQ(phases[1].step_ms, 62.5);
}

TEST(ServerPhases, AreNoSteps) {
  const Diagnosis d =
      Diagnose(ReadFile("logs/sglang_deepseek_v3_decode_tp0.log"), Thresholds::Default());
  EXPECT_TRUE(d.steps.all.empty());
  const std::string text = TextReport(d, Language::kEnglish, {});
  EXPECT_THAT(text, HasSubstr("decode by the log: 8 batches"));
  EXPECT_THAT(text, HasSubstr("a token every 9.05 ms"));
  EXPECT_THAT(text, HasSubstr("not single steps"));
  EXPECT_THAT(text, Not(HasSubstr("no steps were found")));
}

TEST(ServerPhases, OtherLogsSayNothing) {
  const Diagnosis d = Diagnose(ReadFile("logs/nccl_debug_info.log"), Thresholds::Default());
  EXPECT_TRUE(d.server_phases.empty());
  EXPECT_THAT(TextReport(d, Language::kEnglish, {}), HasSubstr("no steps were found"));
}

}  // namespace
}  // namespace fathom::diagnose
