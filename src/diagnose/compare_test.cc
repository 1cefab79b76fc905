#include "diagnose/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "diagnose/report/compare_report.h"
#include "diagnose/report/perfetto.h"
#include "diagnose/rules/synthetic_timeline.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

Diagnosis Of(const SyntheticOptions& options) {
  return Diagnose(MakeSynthetic(options), Thresholds::Default());
}

const BucketChange* Decode(const Comparison& c) {
  for (const BucketChange& b : c.buckets) {
    if (b.phase == Phase::kDecode) return &b;
  }
  return nullptr;
}

const FindingChange* Find(const Comparison& c, std::string_view id) {
  for (const FindingChange& f : c.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

TEST(Compare, EqualRunsAreTheSame) {
  const Comparison c = Compare(Of({}), Of({}));
  ASSERT_NE(Decode(c), nullptr);
  EXPECT_EQ(Decode(c)->verdict, Verdict::kSame);
  EXPECT_TRUE(Decode(c)->parts.empty());
  EXPECT_EQ(c.WorstSlowdown(), 0);
  EXPECT_EQ(c.unmatched_before + c.unmatched_after, 0u);
}

TEST(Compare, AFixIsFasterAndItsFindingGone) {
  const Comparison c = Compare(Of({.faults = {.sync_us = 400}}), Of({}));
  const BucketChange* decode = Decode(c);
  ASSERT_NE(decode, nullptr);
  EXPECT_EQ(decode->verdict, Verdict::kFaster);
  EXPECT_NEAR(decode->before_ms - decode->after_ms, 0.4, 0.02);
  ASSERT_FALSE(decode->parts.empty());
  EXPECT_EQ(decode->parts[0].name, "sync-call");
  EXPECT_TRUE(decode->parts[0].idle);
  ASSERT_NE(Find(c, "sync-call"), nullptr);
  EXPECT_EQ(Find(c, "sync-call")->fate, Fate::kGone);
  EXPECT_EQ(c.WorstSlowdown(), 0);
  const Comparison back = Compare(Of({}), Of({.faults = {.sync_us = 400}}));
  EXPECT_EQ(Find(back, "sync-call")->fate, Fate::kNew);
  EXPECT_GT(back.WorstSlowdown(), 0.3);
}

TEST(Compare, AFindingThatCannotBeJudgedIsNotGone) {
  Timeline empty;
  empty.AddSource("nothing", "kineto");
  const Comparison c =
      Compare(Of({.faults = {.sync_us = 400}}), Diagnose(std::move(empty), Thresholds::Default()));
  ASSERT_NE(Find(c, "sync-call"), nullptr);
  EXPECT_EQ(Find(c, "sync-call")->fate, Fate::kUndecidable);
  EXPECT_GT(c.unmatched_before, 0u);
}

TEST(Compare, TwoStepsTellNothing) {
  const Comparison c = Compare(Of({.decode_steps = 2}), Of({.decode_steps = 2, .kernel_us = 40}));
  ASSERT_NE(Decode(c), nullptr);
  EXPECT_EQ(Decode(c)->verdict, Verdict::kTooFew);
  EXPECT_EQ(c.WorstSlowdown(), 0);
  EXPECT_FALSE(c.CanTell());
}

TEST(Compare, OneStepShowsNoSpread) {
  const Comparison c = Compare(Of({}), Of({}));
  for (const BucketChange& b : c.buckets) {
    EXPECT_EQ(std::isnan(b.error_ms), b.steps_before < 2) << b.steps_before;
  }
  EXPECT_TRUE(c.CanTell());
  EXPECT_NE(CompareText(c, Language::kEnglish).find("one step shows no spread; 1 / 1 steps"),
            std::string::npos);
  EXPECT_EQ(CompareText(c, Language::kEnglish).find("error: 0 ms"), std::string::npos);
  EXPECT_TRUE(CompareJson(c)["buckets"][0]["error_ms"].is_null());
}

// Steps of 5 ms that scatter by several percent.
Diagnosis Noisy(double factor) {
  Timeline t;
  const SourceId source = t.AddSource("trace", "kineto");
  const TrackId thread = t.AddTrack({.source = source, .kind = TrackKind::kCpuThread, .tid = 1});
  int64_t now = 0;
  for (int i = 0; i < 40; ++i) {
    const auto ns = static_cast<int64_t>(5e6 * factor * (1 + 0.01 * ((i * 7) % 11 - 5)));
    t.AddSlice(Category::kAnnotation, thread, now, ns,
               t.strings.Intern("decode_step_" + std::to_string(i)));
    now += ns + 1000;
  }
  return Diagnose(std::move(t), Thresholds::Default());
}

TEST(Compare, NoiseHidesSmallDifferencesOnly) {
  EXPECT_EQ(Decode(Compare(Noisy(1), Noisy(1.005)))->verdict, Verdict::kSame);
  const Comparison slower = Compare(Noisy(1), Noisy(1.08));
  EXPECT_EQ(Decode(slower)->verdict, Verdict::kSlower);
  EXPECT_NEAR(slower.WorstSlowdown(), 0.08, 0.01);
}

TEST(Compare, RealPairLosesItsConcatenations) {
  const Diagnosis before =
      Diagnose(ReadFile("kineto/llama_dynamic_ntk_past_limit.json.gz"), Thresholds::Default());
  const Diagnosis after =
      Diagnose(ReadFile("kineto/llama_sdpa_static_cache.json.gz"), Thresholds::Default());
  const Comparison c = Compare(before, after);
  ASSERT_NE(Find(c, "jit-recompile"), nullptr);
  EXPECT_EQ(Find(c, "jit-recompile")->fate, Fate::kGone);
  EXPECT_EQ(Decode(c)->verdict, Verdict::kFaster);
  const std::string text = CompareText(c, Language::kEnglish);
  EXPECT_NE(text.find("gone: jit-recompile"), std::string::npos) << text;
  EXPECT_EQ(CompareJson(c)["schema"], "fathom.compare/1");
}

nlohmann::json PerfettoTraceOf(const Diagnosis& d) {
  std::string text;
  EXPECT_TRUE(WritePerfettoTrace(d, Language::kEnglish, [&](std::string_view piece) -> Status {
    text += piece;
    return {};
  }));
  return nlohmann::json::parse(text);
}

TEST(Perfetto, EveryEventIsWellFormedAndFindingsHaveTracks) {
  const Diagnosis d = Of({.faults = {.kv_copy_share = 0.25, .sync_us = 400}});
  EXPECT_FALSE(WritePerfettoTrace(d, Language::kEnglish, [](std::string_view) -> Status {
    return Err(Code::kResourceExhausted, "disk full");
  }));
  const nlohmann::json trace = PerfettoTraceOf(d);
  size_t findings = 0;
  size_t kernels = 0;
  std::set<int> named;
  for (const auto& e : trace.at("traceEvents")) {
    const std::string phase = e.at("ph");
    if (phase == "M") {
      if (e.at("name") == "process_name") named.insert(e.at("pid").get<int>());
      continue;
    }
    ASSERT_EQ(phase, "X");
    EXPECT_TRUE(named.contains(e.at("pid").get<int>()));
    EXPECT_GE(e.at("ts").get<double>(), 0);
    EXPECT_GE(e.at("dur").get<double>(), 0);
    EXPECT_FALSE(e.at("name").get<std::string>().empty());
    findings += e.at("cat") == "finding" ? 1 : 0;
    kernels += e.at("cat") == "kernel" ? 1 : 0;
  }
  EXPECT_GE(findings, 2u);
  EXPECT_EQ(kernels, CountCategory(*d.timeline, Category::kKernel));
}

// Kernels overlap in a stream (programmatic dependent launch), and an annotation may end after its
// parent: an importer that nests complete events would drop them.
TEST(Perfetto, CompleteEventsOfAThreadNest) {
  const Diagnosis d =
      Diagnose(ReadFile("kineto/llama_eager_repeat_kv_cat_cache.json.gz"), Thresholds::Default());
  using Interval = std::pair<int64_t, int64_t>;
  std::map<std::pair<int, int64_t>, std::vector<Interval>> threads;
  std::set<std::pair<int, int64_t>> named;
  size_t written = 0;
  const nlohmann::json trace = PerfettoTraceOf(d);
  for (const auto& e : trace.at("traceEvents")) {
    const std::pair<int, int64_t> thread = {e.at("pid"), e.at("tid")};
    if (e.at("name") == "thread_name") named.insert(thread);
    if (e.at("ph") != "X") continue;
    const int64_t start = std::llround(e.at("ts").get<double>() * 1000);
    // The longer of two that start together comes first.
    threads[thread].push_back({start, -std::llround(e.at("dur").get<double>() * 1000)});
    written += e.at("pid") >= 10 ? 1 : 0;  // of the input
  }
  EXPECT_EQ(written, d.timeline->slices.size());
  size_t lanes = 0;
  for (auto& [thread, events] : threads) {
    EXPECT_TRUE(named.contains(thread)) << thread.second;
    lanes += thread.second >= 1'000'000 ? 1 : 0;
    std::sort(events.begin(), events.end());
    std::vector<int64_t> open;
    for (const auto& [start, negative_dur] : events) {
      const int64_t end = start - negative_dur;
      while (!open.empty() && open.back() <= start) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << start;
      open.push_back(end);
    }
  }
  EXPECT_GT(lanes, 0u);  // the recording has such events
}

}  // namespace
}  // namespace fathom::diagnose
