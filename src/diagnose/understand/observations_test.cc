#include "diagnose/understand/observations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/report/json_report.h"
#include "diagnose/report/text_report.h"
#include "diagnose/rules/synthetic_timeline.h"
#include "diagnose/test_util.h"
#include "diagnose/understand/histograms.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;
using testing::Not;

const Observation* Find(const std::vector<Observation>& all, std::string_view id) {
  for (const Observation& o : all) {
    if (o.id == id) return &o;
  }
  return nullptr;
}

const Recommendation* Find(const std::vector<Recommendation>& all, std::string_view id) {
  for (const Recommendation& r : all) {
    if (r.id == id) return &r;
  }
  return nullptr;
}

std::string VllmLine(int second, int running, int waiting, double usage, int preemptions) {
  return fmt::format(
      "INFO 09-26 11:20:{:02} [loggers.py:127] Engine 000: Avg prompt throughput: 10.0 tokens/s, "
      "Avg generation throughput: 100.0 tokens/s, Running: {} reqs, Waiting: {} reqs, "
      "Preemptions: {}, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: 25.0%\n",
      second, running, waiting, preemptions, usage);
}

TEST(Observations, QueuePressureNeedsAFullCacheAndAQueue) {
  std::string log = "INFO 09-26 11:20:00 [x.py:1] GPU KV cache size: 100,000 tokens\n";
  log += VllmLine(1, 30, 0, 95, 0) + VllmLine(2, 32, 7, 96, 3) + VllmLine(3, 20, 4, 60, 0);
  const Diagnosis d = Diagnose(ReadText(log), Thresholds::Default());
  const Observation* pressure = Find(d.observations, "queue-pressure");
  ASSERT_NE(pressure, nullptr);
  EXPECT_TRUE(pressure->alarming);
  EXPECT_DOUBLE_EQ(pressure->value, 1.0 / 3);
  EXPECT_DOUBLE_EQ(Find(d.observations, "preemptions")->value, 3);
  EXPECT_DOUBLE_EQ(Find(d.observations, "requests")->value, 32);
  EXPECT_DOUBLE_EQ(Find(d.observations, "kv-capacity")->value, 100'000);
  // 0.95 * 100,000 / 30 = 3167, 0.96 * 100,000 / 32 = 3000, 0.6 * 100,000 / 20 = 3000 tokens.
  const Recommendation* batch = Find(d.recommendations, "max-batch");
  ASSERT_NE(batch, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, batch->change), HasSubstr("28 sequences"));
  ASSERT_NE(Find(d.recommendations, "kv-dtype"), nullptr);
}

TEST(Observations, AQueueBesideRoomInTheCacheIsALimitOfTheBatch) {
  const Diagnosis d =
      Diagnose(ReadFile("logs/vllm_v1_preempted_recount_random.log"), Thresholds::Default());
  EXPECT_EQ(Find(d.observations, "queue-pressure"), nullptr);  // 82 % full
  const Observation* queue = Find(d.observations, "queue-with-room");
  ASSERT_NE(queue, nullptr);
  EXPECT_TRUE(queue->alarming);  // 535 wait, 259 run
  EXPECT_DOUBLE_EQ(queue->value, 535);
  EXPECT_THAT(Say(Language::kEnglish, queue->text), HasSubstr("--max-num-seqs"));
}

TEST(Observations, AnIdleServerAsksForNothing) {
  const Diagnosis d = Diagnose(ReadText(VllmLine(1, 2, 0, 10, 0) + VllmLine(2, 2, 0, 11, 0)),
                               Thresholds::Default());
  EXPECT_EQ(Find(d.observations, "queue-pressure"), nullptr);
  for (const Observation& o : d.observations) EXPECT_FALSE(o.alarming) << o.id;
  EXPECT_TRUE(d.recommendations.empty());
}

TEST(Observations, MissedGraphsNameTheBatchToCapture) {
  std::string log;
  for (int i = 0; i < 10; ++i) {
    log += fmt::format(
        "[2025-12-26 06:08:{:02} TP0] Decode batch, #running-req: {}, #token: 1411, token usage: "
        "0.01, cuda graph: {}, gen throughput (token/s): 110.58, #queue-req: 0, \n",
        i, i < 7 ? 8 : 20 + i, i < 7 ? "True" : "False");
  }
  const Diagnosis d = Diagnose(ReadText(log), Thresholds::Default());
  EXPECT_DOUBLE_EQ(Find(d.observations, "graph-misses")->value, 0.3);
  const Recommendation* sizes = Find(d.recommendations, "capture-sizes");
  ASSERT_NE(sizes, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, sizes->change), HasSubstr("batch of 29"));
}

TEST(Observations, QuantilesAreNoFinerThanBuckets) {
  const std::vector<std::pair<double, double>> buckets = {
      {0.1, 50}, {0.2, 98}, {0.5, 99}, {INFINITY, 100}};
  EXPECT_EQ(QuantileOf(buckets, 0.5).up_to, 0.1);
  EXPECT_EQ(QuantileOf(buckets, 0.99).above, 0.2);
  EXPECT_EQ(QuantileOf(buckets, 0.99).up_to, 0.5);
  EXPECT_TRUE(std::isinf(QuantileOf(buckets, 0.999).up_to));
  const std::vector<Observation> scrape = Observe(ReadFile("metrics/vllm_v1_qwen3-0.6b.prom"));
  const Observation* latency = Find(scrape, "latency");
  ASSERT_NE(latency, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, latency->text), HasSubstr("p99"));
}

TEST(Observations, SpeculationFromTheLog) {
  const std::vector<Observation> all = Observe(ReadFile("logs/vllm_v1_deepseek-v4_specdecode.log"));
  const Observation* speculation = Find(all, "speculation");
  ASSERT_NE(speculation, nullptr);
  EXPECT_NEAR(speculation->value, 1.81, 0.02);
}

// Windows of pure decode with 8 to 70 sequences, a token taking 5.1 ms and so much for each of
// them.
std::string DecodeLog(double ms_each, int waiting, int preemptions, double noise = 0) {
  std::string log = "INFO 09-26 11:20:00 [x.py:1] GPU KV cache size: 110,000 tokens\n";
  for (int i = 0; i < 40; ++i) {
    const int running = 8 + i * 62 / 39;
    const double ms = (5.1 + ms_each * running) * (i % 3 == 0 ? 1 + noise : 1 - noise / 2);
    log += fmt::format(
        "INFO 09-26 11:21:{:02} [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: {} reqs, "
        "Preemptions: {}, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: 25.0%\n",
        i, running / ms * 1e3, running, waiting, preemptions, running * 0.99);
  }
  return log;
}

TEST(Recommendations, TheBatchEndsAtTheKneeOfTheTokenTime) {
  const auto batch = [](const std::string& log) {
    const Diagnosis d = Diagnose(ReadText(log), Thresholds::Default());
    const Recommendation* r = Find(d.recommendations, "max-batch");
    return r == nullptr
               ? ""
               : Say(Language::kEnglish, r->change) + "; " + Say(Language::kEnglish, r->why);
  };
  // The cache holds 90 sequences of 1089 tokens, and 80 % of the tokens/s take 40 of them: there is
  // no reason to run more than ran.
  EXPECT_EQ(batch(DecodeLog(0.5, 9, 0)), "");
  EXPECT_THAT(batch(DecodeLog(0.5, 9, 2)), HasSubstr("batch to 40 sequences"));
  EXPECT_THAT(batch(DecodeLog(0.5, 9, 2)), HasSubstr("the cache would hold 90"));
  // Tokens that hardly get longer: the knee is beyond what was measured, the cache decides.
  EXPECT_THAT(batch(DecodeLog(0.05, 9, 0)), HasSubstr("batch to 90 sequences"));
  // Times that no line explains say nothing of a knee.
  EXPECT_THAT(batch(DecodeLog(0.5, 9, 0, 0.9)), HasSubstr("batch to 90 sequences"));
}

// Mixed steps of 2 ms + 10 us a prompt token beside decode steps of about 5 ms.
Timeline WithMixedSteps(double noise) {
  Timeline t;
  const SourceId source = t.AddSource("trace", "kineto");
  const TrackId thread = t.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .tid = 1});
  int64_t now = 0;
  const auto step = [&](const std::string& name, double ns) {
    t.AddSlice(Category::kAnnotation, thread, now, static_cast<int64_t>(ns),
               t.strings.Intern(name));
    now += static_cast<int64_t>(ns) + 1000;
  };
  for (int i = 0; i < 8; ++i) step("execute_context_0(0)_generation_4(4)", 5e6);
  for (int i = 0; i < 40; ++i) {
    const int tokens = 200 + 97 * (i % 20);
    const double factor = i % 3 == 0 ? 1 + noise : 1 - noise / 2;
    step(fmt::format("execute_context_1({})_generation_4(4)", tokens),
         (2e6 + 1e4 * tokens) * factor);
  }
  return t;
}

TEST(Recommendations, ChunkFromTheCostOfAPromptToken) {
  const Diagnosis d = Diagnose(WithMixedSteps(0), Thresholds::Default());
  const Recommendation* chunk = Find(d.recommendations, "chunk-tokens");
  ASSERT_NE(chunk, nullptr);
  // 2 ms + 10 us * n <= 2 * 5 ms.
  EXPECT_THAT(Say(Language::kEnglish, chunk->change), HasSubstr("800 prompt tokens"));
  EXPECT_EQ(
      Find(Diagnose(WithMixedSteps(0.9), Thresholds::Default()).recommendations, "chunk-tokens"),
      nullptr);
}

TEST(Reports, StepsWithoutGpuRowsAreNotIdle) {
  const Diagnosis d = Diagnose(WithMixedSteps(0), Thresholds::Default());
  const std::string text = TextReport(d, Language::kEnglish, {});
  EXPECT_THAT(text, HasSubstr("no GPU rows"));
  EXPECT_THAT(text, Not(HasSubstr("busy 0")));
}

// Fathom's own trace of a CPU: its spans say where the time went, and the rest is nobody's.
TEST(Reports, StepsWithoutGpuRowsShowTheEnginesSpans) {
  Timeline t;
  const SourceId source = t.AddSource("trace", "fathom-trace");
  const TrackId thread = t.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .tid = 1});
  for (int i = 0; i < 25; ++i) {
    const int64_t begin = 2'000'000 * i;
    const int64_t slow = i == 20 ? 900'000 : 0;
    t.AddSlice(Category::kAnnotation, thread, begin, 100'000 + slow,
               t.strings.Intern(fmt::format("decode_step_{}", i)));
    t.AddSlice(Category::kEngine, thread, begin, 30'000, t.strings.Intern("attention L0"));
    t.AddSlice(Category::kEngine, thread, begin + 30'000, 40'000, t.strings.Intern("attention L1"));
    t.AddSlice(Category::kEngine, thread, begin + 70'000, 20'000, t.strings.Intern("head"));
  }
  const Diagnosis d = Diagnose(std::move(t), Thresholds::Default());
  const std::string text = TextReport(d, Language::kEnglish, {});
  EXPECT_THAT(text, HasSubstr("attention 70.0 us, head 20.0 us, unexplained 10.0 us"));
  // What made one step slow, the trace does not show.
  ASSERT_FALSE(d.findings.findings.empty());
  EXPECT_EQ(d.findings.findings[0].id, "switch-stall");
  EXPECT_THAT(text, HasSubstr("unexplained: 900 us"));
  EXPECT_THAT(text, Not(HasSubstr("launch-bound")));
}

TEST(Reports, TrustCountsImpossibleSamples) {
  std::string samples = R"({"schema":"fathom.samples/1","utc_ns_at_zero":0})"
                        "\n";
  for (const double use : {0.4, 3.67, -1.0}) {
    samples += fmt::format("{{\"t_ns\":1,\"metric\":\"gpu_busy\",\"value\":{}}}\n", use);
  }
  const Diagnosis d = Diagnose(ReadText(samples), Thresholds::Default());
  EXPECT_THAT(TextReport(d, Language::kEnglish, {}),
              HasSubstr("2 x impossible-value (above 100 %, or negative)"));
  const auto json = JsonReport(d, Language::kEnglish);
  EXPECT_EQ(json["inputs"][0]["dropped"], 2);
  EXPECT_TRUE(json["inputs"][0]["defects"][0]["first_offset"].is_null());
}

TEST(Reports, EqualReasonsShareALine) {
  const Diagnosis d = Diagnose(WithMixedSteps(0), Thresholds::Default());
  const std::string text = TextReport(d, Language::kEnglish, {});
  const std::string reason = "no Nsight Compute pages were given";
  EXPECT_NE(text.find(reason), std::string::npos);
  EXPECT_EQ(text.find(reason), text.rfind(reason));
  const std::string zh = TextReport(d, Language::kChinese, {});
  EXPECT_THAT(zh, HasSubstr("个事件"));
  EXPECT_THAT(zh, Not(HasSubstr(" events")));
}

TEST(Reports, CountsListedGpusAndNamesUnlistedOnes) {
  Timeline t = MakeSynthetic({});
  t.sources[0].devices.push_back({.id = 7, .name = "NVIDIA H200"});
  const int32_t working = t.sources[0].devices[0].id;
  EXPECT_THAT(TextReport(Diagnose(std::move(t), Thresholds::Default()), Language::kEnglish, {}),
              HasSubstr("1 of 2 listed GPUs have work"));
  Timeline u = MakeSynthetic({});
  u.sources[0].devices[0].id = working + 1;
  const std::string text =
      TextReport(Diagnose(std::move(u), Thresholds::Default()), Language::kEnglish, {});
  EXPECT_THAT(text, HasSubstr("0 of 1 listed GPUs have work"));
  EXPECT_THAT(text, HasSubstr(fmt::format("GPU {}: has work, but", working)));
  // Samples list GPUs and hold no work.
  Timeline samples;
  samples.AddSource("samples.json", "fathom-samples");
  samples.sources[0].devices.push_back({.id = 0, .name = "NVIDIA H200"});
  EXPECT_THAT(
      TextReport(Diagnose(std::move(samples), Thresholds::Default()), Language::kEnglish, {}),
      Not(HasSubstr("listed GPUs")));
}

TEST(Rules, OneStepIsNoLaunchGap) {
  SyntheticOptions options{.decode_steps = 2, .faults = {.launch_gap_us = 100}};
  const Diagnosis d = Diagnose(MakeSynthetic(options), Thresholds::Default());
  for (const Finding& f : d.findings.findings) EXPECT_NE(f.id, "launch-gap");
  EXPECT_TRUE(std::any_of(d.findings.abstained.begin(), d.findings.abstained.end(),
                          [](const Abstention& a) { return a.id == "launch-gap"; }));
}

TEST(Steps, AProfilerStepThatCapturesAGraphIsNone) {
  Timeline t;
  const SourceId source = t.AddSource("trace", "kineto");
  const TrackId thread = t.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .tid = 1});
  t.AddSlice(Category::kAnnotation, thread, 0, 1000, t.strings.Intern("ProfilerStep#1"));
  t.AddSlice(Category::kRuntime, thread, 100, 10, t.strings.Intern("hipStreamBeginCapture"));
  t.AddSlice(Category::kAnnotation, thread, 2000, 1000, t.strings.Intern("ProfilerStep#2"));
  const TraceIndex index(t);
  const Steps steps = FindSteps(index);
  ASSERT_EQ(steps.all.size(), 1u);
  EXPECT_EQ(steps.all[0].start_ns, 2000);
}

TEST(Observations, RequestsOfOtlpSpans) {
  const Timeline t = ReadFile("otlp/vllm_llm_request_constructed.json");
  const std::vector<Observation> all = Observe(t);
  const Observation* records = Find(all, "request-records");
  ASSERT_NE(records, nullptr);
  EXPECT_DOUBLE_EQ(records->value, 3.34);
  EXPECT_TRUE(records->alarming);  // nearly all of it in the queue
  EXPECT_THAT(Say(Language::kEnglish, records->text), HasSubstr("3.29 s in the queue"));
}

TEST(Observations, OpenTelemetryHistograms) {
  const Timeline t = ReadText(R"({"resourceMetrics": [{"scopeMetrics": [{"metrics": [
      {"name": "gen_ai.server.time_to_first_token", "unit": "s", "histogram": {"dataPoints": [
        {"timeUnixNano": "1790000000000000000", "count": "10", "sum": 5,
         "bucketCounts": ["2", "7", "1", "0"], "explicitBounds": [0.25, 0.5, 1]}]}}]}]}]})");
  const std::vector<Observation> all = Observe(t);
  const Observation* latency = Find(all, "latency");
  ASSERT_NE(latency, nullptr);
  EXPECT_DOUBLE_EQ(latency->value, 1);
  EXPECT_THAT(Say(Language::kEnglish, latency->text), HasSubstr("250 ms .. 500 ms"));
}

TEST(Observations, WhatNcclConnectsAndExchanges) {
  const std::string head = "node1:10:12 [0] NCCL INFO ";
  const Timeline t = ReadText(
      head + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" + head +
      "AllReduce: opCount 1f sendbuff 0x7f recvbuff 0x7f count 4096 datatype 9 op 0 root 0 comm "
      "0x55 [nranks=8] stream 0x5\n");
  const std::vector<Observation> all = Observe(t);
  ASSERT_NE(Find(all, "transports"), nullptr);
  EXPECT_THAT(Say(Language::kEnglish, Find(all, "transports")->text), HasSubstr("1 P2P/CUMEM"));
  ASSERT_NE(Find(all, "collective-calls"), nullptr);
  EXPECT_EQ(Find(all, "collective-calls")->value, 8192);  // bfloat16
}

TEST(Observations, WhatSampledStacksEndIn) {
  const std::vector<Observation> all = Observe(ReadFile("perf/local_python_cpu-clock.txt.gz"));
  const Observation* samples = Find(all, "cpu-samples");
  ASSERT_NE(samples, nullptr);
  EXPECT_THAT(Say(Language::kEnglish, samples->text), HasSubstr("_PyObject_Malloc"));
}

TEST(Observations, TheLongestProfiledKernels) {
  for (const char* page : {"ncu/ncu_torch_raw.csv.gz", "ncu/nsightful_copy_blocked_details.csv"}) {
    const std::vector<Observation> all = Observe(ReadFile(page));
    const Observation* kernels = Find(all, "profiled-kernels");
    ASSERT_NE(kernels, nullptr) << page;
    EXPECT_GT(kernels->value, 0) << page;
    const std::string text = Say(Language::kEnglish, kernels->text);
    EXPECT_THAT(text, HasSubstr("DRAM ")) << page;
  }
}

TEST(Observations, LatencyOfRecordedAccesses) {
  std::string csv = "token_id,emit_ts,hbm_addr,latency\n";
  for (int i = 0; i < 100; ++i)
    csv += fmt::format("{},{},{},{}\n", i / 4, i * 100, i * 4096, 400 + i);
  const std::vector<Observation> all = Observe(ReadText(csv));
  ASSERT_NE(Find(all, "accesses"), nullptr);
  EXPECT_THAT(Say(Language::kEnglish, Find(all, "accesses")->text), HasSubstr("p50 450 ns"));
  EXPECT_DOUBLE_EQ(Find(all, "accesses")->value, 499e-9);
}

}  // namespace
}  // namespace fathom::diagnose
