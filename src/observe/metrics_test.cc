#include "observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "observe/ledger.h"

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMs = 1'000'000;

std::vector<Event> OneRequest() {
  auto at = [](Kind kind, int64_t ms, uint64_t value = 0, uint16_t flags = 0) {
    return Event{
        .start_ns = ms * kMs, .request_id = 5, .value = value, .flags = flags, .kind = kind};
  };
  return {at(Kind::kRequestArrived, 0),
          at(Kind::kQueued, 2, 100),
          at(Kind::kScheduled, 12),
          Event{.start_ns = 12 * kMs,
                .duration_ns = 3 * kMs,
                .step_id = 1,
                .kind = Kind::kOp,
                .op = event::Op::kAttention},
          Event{.start_ns = 12 * kMs,
                .duration_ns = 8 * kMs,
                .step_id = 1,
                .value = 100,
                .aux = 100,
                .kind = Kind::kStep},
          at(Kind::kToken, 20, 0),
          at(Kind::kToken, 24, 1),
          at(Kind::kPreempted, 25),
          at(Kind::kScheduled, 30),  // after the first token: no queue time
          at(Kind::kToken, 44, 2),
          at(Kind::kFinished, 44, 3, 2)};
}

Metrics Make(bool vllm) {
  MetricsOptions options;
  options.model_name = "tiny";
  options.max_context_tokens = 300;
  options.vllm_names = vllm;
  options.cache_config = {{"page_tokens", "64"}};
  return Metrics(options, [] {
    return EngineGauges{.running = 2,
                        .waiting = 1,
                        .pages_total = 100,
                        .pages_free = 40,
                        .pages_cached = 35,
                        .prefix_queries_tokens = 1000,
                        .prefix_hits_tokens = 250};
  });
}

TEST(Metrics, OwnNamesWithFineBuckets) {
  auto metrics = Make(false);
  metrics.Consume(OneRequest());
  metrics.ObserveRequest(2, 64);
  metrics.ObserveHttp("/v1/completions", "POST", 200, 0.05);
  const std::string text = metrics.Render();
  EXPECT_THAT(text,
              HasSubstr("fathom:time_to_first_token_seconds_sum{model_name=\"tiny\"} 0.02\n"));
  EXPECT_THAT(text, HasSubstr("fathom:inter_token_latency_seconds_bucket{model_name=\"tiny\","
                              "le=\"0.0005\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("fathom:inter_token_latency_seconds_bucket{model_name=\"tiny\","
                              "le=\"0.004\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("fathom:request_time_per_output_token_seconds_sum{model_name="
                              "\"tiny\"} 0.012\n"));
  EXPECT_THAT(text, HasSubstr("fathom:request_queue_time_seconds_sum{model_name=\"tiny\"} 0.01\n"));
  EXPECT_THAT(text,
              HasSubstr("fathom:request_prefill_time_seconds_sum{model_name=\"tiny\"} 0.008"));
  EXPECT_THAT(text, HasSubstr("fathom:request_success_total{model_name=\"tiny\","
                              "finished_reason=\"cancelled\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("fathom:step_op_seconds_total{model_name=\"tiny\",clock=\"host\","
                              "op=\"attention\",phase=\"prefill\"} 0.003\n"));
  EXPECT_THAT(text, HasSubstr("fathom:kv_cache_usage_perc{model_name=\"tiny\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("fathom:pages{model_name=\"tiny\",use=\"cached\"} 35\n"));
  EXPECT_THAT(text, HasSubstr("http_requests_total{handler=\"/v1/completions\",method=\"POST\","
                              "status=\"200\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("fathom:request_params_max_tokens_sum{model_name=\"tiny\"} 64\n"));
  EXPECT_THAT(text, Not(HasSubstr("vllm:")));
}

TEST(Metrics, VllmNamesLabelsAndExactBuckets) {
  auto metrics = Make(true);
  metrics.Consume(OneRequest());
  const std::string text = metrics.Render();
  auto les = [&](const std::string& name) {
    std::vector<std::string> out;
    const std::string prefix = name + "_bucket{engine=\"0\",model_name=\"tiny\",le=\"";
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
      const size_t begin = at + prefix.size();
      out.push_back(text.substr(begin, text.find('"', begin) - begin));
    }
    return out;
  };
  EXPECT_THAT(
      les("vllm:inter_token_latency_seconds"),
      testing::ElementsAre("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4",
                           "0.5", "0.75", "1", "2.5", "5", "7.5", "10", "20", "40", "80", "+Inf"));
  EXPECT_THAT(les("vllm:time_to_first_token_seconds").size(), 23u);
  EXPECT_THAT(les("vllm:request_prompt_tokens"),
              testing::ElementsAre("1", "2", "5", "10", "20", "50", "100", "200", "+Inf"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_waiting_by_reason{model_name=\"tiny\","
                              "engine=\"0\",reason=\"capacity\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:prefix_cache_hits_total{model_name=\"tiny\",engine=\"0\"} 250"));
  EXPECT_THAT(text, HasSubstr("finished_reason=\"abort\""));
  EXPECT_THAT(text, HasSubstr("vllm:cache_config_info{model_name=\"tiny\",engine=\"0\","
                              "page_tokens=\"64\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_per_output_token_seconds_count"));
}

TEST(Metrics, SumsPartsOfSettledLedgers) {
  auto metrics = Make(false);
  LedgerOptions options;
  options.settle_ns = kMs;
  options.on_settled = [&](const RequestLedger& ledger) { metrics.ObserveLedger(ledger); };
  Ledger ledger(options);
  auto events = OneRequest();
  events.push_back({.start_ns = 50 * kMs, .request_id = 5, .kind = Kind::kResponded});
  events.push_back({.start_ns = 60 * kMs, .request_id = 6, .kind = Kind::kRequestArrived});
  ledger.Consume(events);
  EXPECT_THAT(metrics.Render(), HasSubstr("fathom:request_part_seconds_total{model_name=\"tiny\","
                                          "part=\"queue\"} 0.01\n"));
}

}  // namespace
}  // namespace fathom::observe
