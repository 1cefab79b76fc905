// Readers of sampled numbers: Prometheus, dmon, dcgmi, OTLP.
#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/readers/dmon.h"
#include "diagnose/readers/otlp.h"
#include "diagnose/readers/prometheus.h"
#include "diagnose/test_util.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

// The samples of the series `name` with `labels` on `device`.
std::vector<std::pair<int64_t, double>> SamplesOf(const Timeline& t, std::string_view name,
                                                  std::string_view labels = "",
                                                  int32_t device = -1) {
  std::vector<std::pair<int64_t, double>> found;
  for (size_t i = 0; i < t.samples.size(); ++i) {
    const Series& row = t.series[t.samples.series[i]];
    if (t.Name(row.name) == name && t.Name(row.labels) == labels && row.device == device) {
      found.emplace_back(t.samples.t_ns[i], t.samples.value[i]);
    }
  }
  return found;
}

using Points = std::vector<std::pair<int64_t, double>>;

TEST(Prometheus, VllmScrape) {
  const Timeline t = ReadFile("metrics/vllm_v1_qwen3-0.6b.prom");
  EXPECT_EQ(t.sources[0].format, "prometheus");
  EXPECT_EQ(t.sources[0].stats.kept, 142u);
  const Points bucket = SamplesOf(t, "vllm:time_per_output_token_seconds_bucket",
                                  R"(le="0.2",model_name="Qwen/Qwen3-0.6B")");
  ASSERT_EQ(bucket.size(), 1u);
  EXPECT_EQ(bucket[0].second, 4720);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kNone);
}

TEST(Prometheus, BlankOfDcgmIsNoValue) {
  const Timeline t = ReadFile("metrics/dcgm_exporter_blank_sentinel.prom");
  EXPECT_EQ(t.samples.size(), 2u);
  EXPECT_EQ(DefectCountOf(t, Defect::kBlankValue), 1u);
  EXPECT_EQ(t.series[0].device, 0);
  EXPECT_EQ(t.series[0].kind, SeriesKind::kGauge);
}

TEST(Prometheus, SeriesOfScrapesWithTimes) {
  const Timeline t = ReadText(
      "# Time: 1790000000.5\n# TYPE q gauge\nq{b=\"2\",a=\"x\\\"y\"} 1\n# Time: 1790000005.5\n"
      "q{a=\"x\\\"y\",b=\"2\"} +Inf\nq{a=\"x\\\"y\",b=\"2\"} 3 1790000006000\n");
  EXPECT_EQ(SamplesOf(t, "q", R"(a="x\"y",b="2")"),
            (Points{{1790000000'500'000'000, 1}, {1790000006'000'000'000, 3}}));
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kUnix);
}

TEST(Prometheus, ScrapesWithoutTimesAreNumbered) {
  const Timeline t = ReadText("# TYPE a counter\na_total 1\nb 5\na_total 2\nb 6\na_total 4\nb 7\n");
  EXPECT_EQ(SamplesOf(t, "a_total"), (Points{{0, 1}, {1, 2}, {2, 4}}));
  EXPECT_EQ(SamplesOf(t, "b"), (Points{{0, 5}, {1, 6}, {2, 7}}));
  EXPECT_EQ(t.series[0].kind, SeriesKind::kCounter);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kNone);
}

TEST(Prometheus, BrokenLinesAreCounted) {
  const Timeline t = ReadText("# TYPE a gauge\na{x=\"1} 5\na{x=\"1\"} abc\na{x=\"1\"} nan\na 1\n");
  EXPECT_EQ(t.samples.size(), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 2u);
  EXPECT_EQ(DefectCountOf(t, Defect::kBlankValue), 1u);
}

TEST(Dmon, H200WithDates) {
  const Timeline t = ReadFile("metrics/nvidia-smi_dmon_h200_pucvmet_DT.txt");
  EXPECT_EQ(t.sources[0].stats.kept, 70u);
  EXPECT_EQ(t.series.size(), 21u);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kWallLocal);
  const Points power = SamplesOf(t, "pwr", "", 0);
  ASSERT_EQ(power.size(), 70u);
  EXPECT_EQ(power[0], (std::pair<int64_t, double>{1795961422'000'000'000, 128}));
  EXPECT_EQ(t.Name(t.series[0].unit), "W");
}

TEST(Dmon, ColumnsVaryAndDashIsNoValue) {
  const Timeline t = ReadFile("metrics/nvidia-smi_dmon_pucm.txt");
  EXPECT_EQ(t.samples.size(), 26u);
  EXPECT_EQ(DefectCountOf(t, Defect::kBlankValue), 2u);
  EXPECT_EQ(SamplesOf(t, "fb", "", 1), (Points{{0, 90536}}));
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kRelative);
}

TEST(Dmon, ShortRowIsMalformed) {
  const Timeline t = ReadText("# gpu sm\n# Idx %\n 0 5\n 0\n x 5\n 0 7\n -1 5\n 4294967296 5\n");
  EXPECT_EQ(SamplesOf(t, "sm", "", 0), (Points{{0, 5}, {1'000'000'000, 7}}));
  EXPECT_EQ(t.series.size(), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 4u);
}

TEST(Dcgmi, ShortNamesUnitsAndRepeatedHeaders) {
  const Timeline t = ReadText(
      "#Entity   GRACT        SMACT        DRAMA        POWER\n"
      "ID                                               W\n"
      "GPU 0     N/A          N/A          N/A          120.5\n"
      "GPU 1     1.000        0.916        0.881        650.2\n"
      "GPU 0     0.984        0.930        0.252        640\n"
      "\n"
      "# Entity  1002         XYZ\n"
      "      Id\n"
      "GPU 0     0.500        7\n"
      "GPU-I 3   0.250        1\n"
      "GPU 0     0.5\n"
      "GPU zero  0.5          1\n");
  EXPECT_EQ(t.sources[0].format, "dcgmi-dmon");
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kRelative);
  EXPECT_EQ(SamplesOf(t, "DCGM_FI_PROF_SM_ACTIVE", "", 1), (Points{{0, 0.916}}));
  EXPECT_EQ(SamplesOf(t, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "", 0), (Points{{1'000'000'000, 0.984}}));
  EXPECT_EQ(SamplesOf(t, "DCGM_FI_DEV_POWER_USAGE", "", 0),
            (Points{{0, 120.5}, {1'000'000'000, 640}}));
  EXPECT_EQ(SamplesOf(t, "XYZ", "", 0), (Points{{2'000'000'000, 7}}));
  EXPECT_EQ(t.sources[0].stats.kept, 4u);
  EXPECT_EQ(t.sources[0].stats.ignored, 1u);  // a MIG instance
  EXPECT_EQ(DefectCountOf(t, Defect::kBlankValue), 3u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 2u);
}

TEST(Dcgmi, NumbersThatAreNone) {
  const Timeline t = ReadText("#Entity   GRACT  SMACT  POWER\nGPU 0     nan  inf  5\n");
  EXPECT_EQ(t.samples.size(), 1u);
  EXPECT_EQ(SamplesOf(t, "DCGM_FI_DEV_POWER_USAGE", "", 0), (Points{{0, 5}}));
  EXPECT_EQ(DefectCountOf(t, Defect::kNonFinite), 2u);
}

// A field by its number is the same series as by its short name.
TEST(Dcgmi, SignalsOfBothNames) {
  const Timeline t = ReadText(
      "#Entity   SMACT        DRAMA\nID\nGPU 0     0.900        0.200\n"
      "#Entity   1002         1005\nID\nGPU 0     0.800        0.100\n");
  const std::vector<SignalSeries> sm = FindSignal(t, Signal::kSmActive);
  size_t samples = 0;
  for (const SignalSeries& s : sm) samples += s.size();
  EXPECT_EQ(samples, 2u);
  EXPECT_EQ(FindSignal(t, Signal::kDramActive)[0].value[0], 0.2);
}

TEST(Dcgmi, TimesThatAShellPutInFront) {
  const Timeline epoch = ReadText(
      "1790000000.25 #Entity   SMACT\n1790000000.25 ID\n1790000000.25 GPU 0     0.5\n"
      "1790000000.50 GPU 0     0.75\nGPU 0     0.1\n");
  EXPECT_EQ(epoch.sources[0].clock, ClockDomain::kUnix);
  EXPECT_EQ(SamplesOf(epoch, "DCGM_FI_PROF_SM_ACTIVE", "", 0),
            (Points{{1790000000'250'000'000, 0.5}, {1790000000'500'000'000, 0.75}}));
  EXPECT_EQ(DefectCountOf(epoch, Defect::kBadTime), 1u);
  const Timeline calendar = ReadText("#Entity   SMACT\nID\n2026-11-29 14:10:22 GPU 0     0.5\n");
  EXPECT_EQ(calendar.sources[0].clock, ClockDomain::kWallLocal);
}

TEST(Otlp, ExponentialHistogramsBecomeCumulativeBuckets) {
  // Scale 1: bounds are powers of the square root of two; offset -2 starts at 0.5.
  const auto point = [](std::string_view more) {
    return fmt::format(
        R"({{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"name":"up","gauge":
        {{"dataPoints":[{{"timeUnixNano":"1000","asInt":"1"}}]}}}},{{"name":"ttft","unit":"s",
        "exponentialHistogram":{{"dataPoints":[{{"timeUnixNano":"1000","count":"8","sum":9,"scale":1,
        "zeroCount":"1","positive":{{"offset":-2,"bucketCounts":["2","0","5"]}}{}}}]}}}}]}}]}}]}})",
        more);
  };
  const Timeline t = ReadText(point(""));
  EXPECT_EQ(SamplesOf(t, "ttft_count"), (Points{{1000, 8}}));
  EXPECT_EQ(SamplesOf(t, "ttft_sum"), (Points{{1000, 9}}));
  EXPECT_EQ(SamplesOf(t, "ttft_bucket", R"(le="0.5")"), (Points{{1000, 1}}));
  EXPECT_EQ(SamplesOf(t, "ttft_bucket", R"(le="1")"), (Points{{1000, 3}}));
  EXPECT_EQ(SamplesOf(t, "ttft_bucket", R"(le="+Inf")"), (Points{{1000, 8}}));
  // Values below zero, and scales that no exporter writes, are counted, not guessed.
  const Timeline negative = ReadText(point(R"(,"negative":{"offset":0,"bucketCounts":["1"]})"));
  EXPECT_EQ(negative.series.size(), 1u);
  EXPECT_EQ(DefectCountOf(negative, Defect::kUnknownRecord), 1u);
}

TEST(Otlp, VllmRequest) {
  const Timeline t = ReadFile("otlp/vllm_llm_request_constructed.json");
  ASSERT_EQ(t.requests.size(), 1u);
  const Request& request = t.requests[0];
  EXPECT_EQ(t.Name(request.id), "cmpl-1");
  EXPECT_DOUBLE_EQ(request.ttft_s, 3.34);
  EXPECT_DOUBLE_EQ(request.queue_s, 3.29);
  EXPECT_DOUBLE_EQ(request.prefill_s, 0.05);
  EXPECT_DOUBLE_EQ(request.decode_s, 0.6);
  EXPECT_DOUBLE_EQ(request.prompt_tokens, 17);
  EXPECT_DOUBLE_EQ(request.completion_tokens, 64);
  EXPECT_TRUE(std::isnan(request.cached_tokens));
  EXPECT_EQ(request.arrival_ns, 1790000000'000'000'000);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kUnix);
}

TEST(Otlp, SemanticConventionsAndOtherSpans) {
  const Timeline t = ReadFile("otlp/otlp_trace_example.json");
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.Name(t.spans[0].service), "my.service");
  EXPECT_EQ(t.Name(t.spans[0].parent_id), "EEE19B7EC3C1B173");
  EXPECT_TRUE(t.requests.empty());
  const Timeline conventions = ReadText(
      R"({"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"chat","startTimeUnixNano":"1000000000",
      "endTimeUnixNano":"3000000000","attributes":[
        {"key":"gen_ai.usage.input_tokens","value":{"intValue":"10"}},
        {"key":"gen_ai.usage.output_tokens","value":{"intValue":20}},
        {"key":"gen_ai.request.model","value":{"stringValue":"r1"}},
        {"key":"flag","value":{"boolValue":true}}]}]}]}]})");
  ASSERT_EQ(conventions.requests.size(), 1u);
  EXPECT_DOUBLE_EQ(conventions.requests[0].prompt_tokens, 10);
  EXPECT_DOUBLE_EQ(conventions.requests[0].completion_tokens, 20);
  EXPECT_DOUBLE_EQ(conventions.requests[0].e2e_s, 2);
  EXPECT_EQ(conventions.Name(conventions.requests[0].model), "r1");
  EXPECT_DOUBLE_EQ(conventions.attributes[3].number, 1);
}

TEST(Otlp, Metrics) {
  const Timeline t = ReadFile("otlp/otlp_metrics_example.json");
  EXPECT_EQ(SamplesOf(t, "my.counter", R"(my.counter.attr="some value")"),
            (Points{{1544712660300000000, 5}}));
  EXPECT_EQ(t.series[0].kind, SeriesKind::kCounter);
  EXPECT_EQ(SamplesOf(t, "my.histogram_bucket", R"(my.histogram.attr="some value",le="+Inf")"),
            (Points{{1544712660300000000, 2}}));
}

TEST(Otlp, LinesAndBrokenOnes) {
  const std::string span =
      R"({"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"a","startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]})";
  const Timeline t = ReadText(span + "\n{broken}\n" + span + "\n" + span.substr(0, 60));
  EXPECT_EQ(t.spans.size(), 2u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kTruncated), 1u);
}

}  // namespace
}  // namespace fathom::diagnose
