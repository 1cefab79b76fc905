// The load generator: its arithmetic, and against a server on a session without a model.
#include <gtest/gtest.h>

#include <numeric>

#include "server/fake_session_for_test.h"
#include "server/load_generator.h"
#include "server/load_report.h"
#include "server/server.h"

namespace fathom::server {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(LoadReport, IsExact) {
  std::vector<RequestOutcome> outcomes(3);
  outcomes[0] = {.ok = true,
                 .ttft_ns = 10 * kMs,
                 .latency_ns = 50 * kMs,
                 .itl_ns = {10 * kMs, 30 * kMs},
                 .prompt_tokens = 5,
                 .output_tokens = 3};
  outcomes[1] = {.ok = true,
                 .ttft_ns = 30 * kMs,
                 .latency_ns = 30 * kMs,
                 .prompt_tokens = 7,
                 .output_tokens = 1};
  outcomes[2].error = "HTTP 429";
  const auto report = LoadReport(outcomes, 2'000 * kMs, 2, {.ttft_ms = 20});
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["failed"], 1);
  EXPECT_EQ(report["request_throughput"], 1.0);
  EXPECT_EQ(report["request_goodput"], 0.5);
  EXPECT_EQ(report["output_throughput"], 2.0);
  EXPECT_EQ(report["total_token_throughput"], 8.0);
  EXPECT_EQ(report["mean_ttft_ms"], 20.0);
  EXPECT_EQ(report["std_ttft_ms"], 10.0);
  EXPECT_EQ(report["median_ttft_ms"], 20.0);
  EXPECT_EQ(report["p90_ttft_ms"], 28.0);
  EXPECT_EQ(report["mean_tpot_ms"], 20.0);  // one token has none
  EXPECT_EQ(report["p99_itl_ms"], 29.8);
  EXPECT_EQ(report["mean_e2el_ms"], 40.0);
  EXPECT_EQ(report["errors"][0]["count"], 1);
  EXPECT_NE(LoadTable(report).find("2 completed, 1 failed"), std::string::npos);
  EXPECT_TRUE(LoadReport({}, 0, 0, {})["mean_itl_ms"].is_null());
}

TEST(ArrivalTimes, HaveTheRateAndTheBurstiness) {
  for (const double burstiness : {0.5, 1.0, 4.0}) {
    const auto times =
        ArrivalTimes(20000, {.request_rate = 100, .burstiness = burstiness, .seed = 3});
    std::vector<double> pauses;
    for (size_t i = 1; i < times.size(); ++i) {
      pauses.push_back(static_cast<double>(times[i] - times[i - 1]) * 1e-9);
    }
    const auto n = static_cast<double>(pauses.size());
    const double mean = std::accumulate(pauses.begin(), pauses.end(), 0.0) / n;
    double variance = 0;
    for (const double p : pauses) variance += (p - mean) * (p - mean) / n;
    EXPECT_NEAR(mean, 0.01, 0.0003);
    // A gamma distribution's squared mean over its variance is its shape.
    EXPECT_NEAR(mean * mean / variance, burstiness, 0.15 * burstiness);
  }
  for (const int64_t t : ArrivalTimes(5, {})) EXPECT_EQ(t, 0);
}

class LoadTest : public testing::Test {
 protected:
  LoadTest() {
    ServerOptions options;
    options.port = 0;
    options.handle_signals = false;
    server_ =
        *Server::Create(options, session_, {event::Sink(&ring_), &recorder_, &ledger_, &metrics_});
    thread_ = std::thread([this] { server_->Run(); });
    target_.port = std::to_string(server_->port());
    target_.model = "fake";
  }
  ~LoadTest() override {
    server_->Drain();
    thread_.join();
  }
  event::Ring ring_{1 << 16};
  observe::Ledger ledger_;
  observe::Metrics metrics_{{.model_name = "fake", .max_context_tokens = 2000},
                            [] { return observe::EngineGauges(); }};
  observe::Recorder recorder_{&ring_, {&ledger_, &metrics_}};
  FakeSession session_{event::Sink(&ring_)};
  std::unique_ptr<Server> server_;
  std::thread thread_;
  LoadTarget target_;
};

TEST_F(LoadTest, MeasuresEveryRequestOfAChatAndACompletion) {
  for (const bool chat : {false, true}) {
    target_.chat = chat;
    const nlohmann::json prompt =
        chat ? nlohmann::json::parse(R"([{"role":"user","content":"hello"}])")
             : nlohmann::json("hello");
    const std::vector<LoadRequest> requests(20, {.prompt = prompt, .max_tokens = 10});
    size_t last = 0;
    const auto result =
        RunLoad(target_, requests,
                {.max_concurrency = 4, .ignore_eos = true, .extra = {{"temperature", 0}}},
                [&](size_t done, size_t) { last = done; });
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(last, 20u);
    EXPECT_EQ(result->max_concurrent_requests, 4);
    for (const RequestOutcome& outcome : result->outcomes) {
      EXPECT_TRUE(outcome.ok) << outcome.error;
      EXPECT_EQ(outcome.output_tokens, 10);
      EXPECT_GT(outcome.ttft_ns, 0);
      EXPECT_EQ(outcome.itl_ns.size(), 9u);
      EXPECT_GE(outcome.latency_ns, outcome.ttft_ns);
    }
  }
}

TEST_F(LoadTest, SaysWhyRequestsFail) {
  const std::vector<LoadRequest> requests(2, {.prompt = "x", .max_tokens = 5000});
  auto result = RunLoad(target_, requests, {}, [](size_t, size_t) {});
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->outcomes[0].ok);
  EXPECT_NE(result->outcomes[0].error.find("HTTP 400"), std::string::npos);
  LoadTarget nobody = target_;
  nobody.port = "1";
  result = RunLoad(nobody, requests, {}, [](size_t, size_t) {});
  ASSERT_TRUE(result);
  EXPECT_NE(result->outcomes[1].error.find("connect"), std::string::npos);
  EXPECT_FALSE(Fetch(nobody, "GET", "/v1/models", ""));
  const auto models = Fetch(target_, "GET", "/v1/models", "");
  ASSERT_TRUE(models);
  EXPECT_EQ((*models)["data"][0]["id"], "fake");
}

}  // namespace
}  // namespace fathom::server
