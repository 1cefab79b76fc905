#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "diagnose/report/describe.h"
#include "diagnose/rules/rule_test_util.h"
#include "diagnose/test_util.h"
#include "diagnose/understand/histograms.h"

namespace fathom::diagnose {
namespace {

// One scrape of a server: counters since its start, as Prometheus has them.
struct Page {
  double requests = 0;   // all
  double within_5s = 0;  // of them, with a first token within 5 s
  double within_1s = 0;
  double waiting = 0;
  double usage = 0;
  double preemptions = 0;
};

constexpr int kStepS = 15;

// A series of scrapes, one every `step_s`; `page` makes them by number.
std::string Scrapes(int count, const std::function<Page(int)>& page, int step_s = kStepS) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const Page p = page(i);
    text += fmt::format(
        "# Time: {}\n"
        "vllm:time_to_first_token_seconds_bucket{{le=\"1.0\"}} {}\n"
        "vllm:time_to_first_token_seconds_bucket{{le=\"5.0\"}} {}\n"
        "vllm:time_to_first_token_seconds_bucket{{le=\"10.0\"}} {}\n"
        "vllm:time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {}\n"
        "vllm:inter_token_latency_seconds_bucket{{le=\"0.2\"}} {}\n"
        "vllm:inter_token_latency_seconds_bucket{{le=\"+Inf\"}} {}\n"
        "vllm:num_requests_waiting {}\n"
        "vllm:kv_cache_usage_perc {}\n"
        "vllm:num_preemptions_total {}\n",
        1790000000 + int64_t{i} * step_s, p.within_1s, p.within_5s, p.requests, p.requests,
        p.requests, p.requests, p.waiting, p.usage, p.preemptions);
  }
  return text;
}

// 20 requests a scrape, of which so many have their first token only after 5 s.
std::function<Page(int)> Late(double each) {
  return [each](int i) {
    return Page{.requests = 20.0 * i, .within_5s = (20 - each) * i, .within_1s = 10.0 * i};
  };
}

Diagnosis Of(const std::string& scrapes, const char* limits = "{}") {
  const auto thresholds = Thresholds::FromJson(limits);
  EXPECT_TRUE(thresholds);
  return Diagnose(ReadText(scrapes), *thresholds);
}

std::string FirstEvidence(const Diagnosis& d) {
  const Finding* finding = Find(d, "overload");
  return finding == nullptr || finding->evidence.empty()
             ? ""
             : EvidenceLine(finding->evidence[0], Language::kEnglish);
}

TEST(Overload, BurnsTheBudgetInBothWindows) {
  // A fifth is late: 20 times a budget of 1 %, for longer than an hour.
  const Diagnosis d = Of(Scrapes(300, Late(4)));
  const Finding* finding = Find(d, "overload");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->severity, Severity::kSevere);
  EXPECT_DOUBLE_EQ(finding->confidence, 0.9);
  ASSERT_EQ(finding->evidence.size(), 1u);
  EXPECT_NEAR(finding->evidence[0].value, 20, 1e-9);
  const std::string line = FirstEvidence(d);
  EXPECT_NE(line.find("80 of 400 took longer than 5.00 s in 300 s"), std::string::npos) << line;
  EXPECT_NE(line.find("960 of 4800 in 3600 s"), std::string::npos) << line;
  // The quantile is known to a bucket, whose width is printed.
  EXPECT_NE(line.find("lies in the bucket 5.00 s .. 10.0 s (+- 2.50 s)"), std::string::npos)
      << line;
}

TEST(Overload, HealthyServersAreClean) {
  EXPECT_TRUE(IsClean(Of(Scrapes(300, Late(0))), "overload"));
  // A tenth is late: 10 times the budget, below the limit.
  EXPECT_TRUE(IsClean(Of(Scrapes(300, Late(2))), "overload"));
  EXPECT_FALSE(IsClean(Of(Scrapes(300, Late(2)), R"({"overload.burn_rate": 9})"), "overload"));
}

TEST(Overload, ABurstDoesNotFillTheSlowWindow) {
  // Everything is late for 5 of 75 minutes: 6.7 % of the last hour at most.
  const auto page = [](int i) {
    const double late = 20.0 * std::clamp(i - 200, 0, 20);
    return Page{.requests = 20.0 * i, .within_5s = 20.0 * i - late, .within_1s = 0};
  };
  EXPECT_TRUE(IsClean(Of(Scrapes(300, page)), "overload"));
  // The fast window alone would have spoken.
  EXPECT_NE(Find(Of(Scrapes(300, page), R"({"overload.slow_window_s": 300})"), "overload"),
            nullptr);
}

TEST(Overload, AShortRecordingIsItsOwnSlowWindow) {
  const Diagnosis d = Of(Scrapes(41, Late(4)));  // ten minutes
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_DOUBLE_EQ(Find(d, "overload")->confidence, 0.7);
  EXPECT_NE(FirstEvidence(d).find("160 of 800 in 600 s"), std::string::npos) << FirstEvidence(d);
}

TEST(Overload, AnEarlyBurstIsOver) {
  // Ten minutes: everything late in the first five, nothing in the last.
  const auto page = [](int i) {
    return Page{.requests = 20.0 * i, .within_5s = 20.0 * std::max(i - 20, 0), .within_1s = 0};
  };
  EXPECT_TRUE(IsClean(Of(Scrapes(41, page)), "overload"));
}

TEST(Overload, AnObjectiveInsideABucketCountsWhatIsCertain) {
  // Half of the requests take 1 to 5 s: against 2 s, they may have missed it or not.
  const std::string scrapes = Scrapes(300, Late(0));
  EXPECT_TRUE(IsClean(Of(scrapes, R"({"overload.ttft_slo_s": 2})"), "overload"));
  // 4 of 20 certainly did; the report states both ends.
  const Diagnosis d = Of(Scrapes(300, Late(4)), R"({"overload.ttft_slo_s": 2})");
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_NE(FirstEvidence(d).find("80 .. 200 of 400"), std::string::npos) << FirstEvidence(d);
}

TEST(Overload, ARestartBeginsAnew) {
  // Counters of a server that starts again never give negative windows.
  const auto page = [](int i) {
    const double n = i < 30 ? i : i - 30;
    return Page{.requests = 20.0 * n, .within_5s = i < 30 ? 16.0 * n : 20.0 * n, .within_1s = 0};
  };
  const Diagnosis d = Of(Scrapes(60, page));
  ASSERT_NE(Find(d, "overload"), nullptr);  // before the restart, 30 scrapes before the end
  EXPECT_NEAR(Find(d, "overload")->evidence[0].value, 20, 1e-9);
  EXPECT_EQ(Find(d, "overload")->severity, Severity::kWarn);
  EXPECT_EQ(Find(d, "overload")->title.key, "overload.title.burned");
  EXPECT_NE(FirstEvidence(d).find("which end 450 s before the end"), std::string::npos)
      << FirstEvidence(d);
}

// What burned and no longer does is told with its time and is no alarm.
TEST(Overload, WhatIsOverIsNotSevere) {
  // 2 hours of a fifth late, then 2 hours of none.
  const auto page = [](int i) {
    const int n = std::min(i, 480);
    return Page{.requests = 20.0 * i, .within_5s = 20.0 * i - 4 * n, .within_1s = 0};
  };
  const Diagnosis d = Of(Scrapes(960, page));
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_EQ(Find(d, "overload")->severity, Severity::kWarn);
  EXPECT_EQ(Find(d, "overload")->title.key, "overload.title.burned");
  EXPECT_EQ(Find(Of(Scrapes(960, Late(4))), "overload")->title.key, "overload.title.burn");
}

// Scrapes too far apart show no window of the right length.
TEST(Overload, LongWindowsAreOthers) {
  const auto page = [](int i) {
    return Page{.requests = 200.0 * i, .within_5s = 160.0 * i, .within_1s = 0};
  };
  const auto spaced = [&](int step_s) { return Of(Scrapes(30, page, step_s)); };
  EXPECT_NE(Find(spaced(300), "overload"), nullptr);
  EXPECT_EQ(Find(spaced(3600), "overload"), nullptr);
  EXPECT_TRUE(Abstained(spaced(3600), "overload"));
  EXPECT_TRUE(Abstained(spaced(86400), "overload"));
}

// Two engines, of which the second one's history has a fifth late and its present none.
std::string TwoEngines(const std::function<bool(int)>& second) {
  std::string text;
  const auto buckets = [&](int engine, double within_5s, double requests) {
    constexpr const char* kBucket =
        "vllm:time_to_first_token_seconds_bucket{{engine=\"{}\",le=\"{}\"}} {}\n";
    text += fmt::format(fmt::runtime(kBucket), engine, "5.0", within_5s);
    text += fmt::format(fmt::runtime(kBucket), engine, "+Inf", requests);
  };
  for (int i = 0; i < 300; ++i) {
    text += fmt::format("# Time: {}\n", 1790000000 + i * kStepS);
    buckets(0, 20 * i, 20 * i);
    if (second(i)) buckets(1, 80000 + 20 * i, 100000 + 20 * i);
  }
  return text;
}

// A label set's history is no traffic of the moment at which it appears.
TEST(Overload, LabelSetsThatComeAndGoBeginAnew) {
  EXPECT_EQ(Find(Of(TwoEngines([](int) { return true; })), "overload"), nullptr);
  EXPECT_EQ(Find(Of(TwoEngines([](int i) { return i >= 270; })), "overload"), nullptr);
  EXPECT_EQ(Find(Of(TwoEngines([](int i) { return i != 279; })), "overload"), nullptr);
}

TEST(Overload, WaitsBesideAFullCache) {
  const auto page = [](int full_scrapes) {
    return [full_scrapes](int i) {
      const bool full = i >= 10 && i < 10 + full_scrapes;
      return Page{.requests = 20.0 * i,
                  .within_5s = 20.0 * i,
                  .within_1s = 20.0 * i,
                  .waiting = 3,
                  .usage = full ? 0.97 : 0.5};
    };
  };
  const Diagnosis d = Of(Scrapes(60, page(21)));  // 20 intervals of 15 s
  const Finding* finding = Find(d, "overload");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->severity, Severity::kWarn);
  EXPECT_DOUBLE_EQ(finding->evidence[0].value, 300);
  EXPECT_TRUE(IsClean(Of(Scrapes(60, page(20))), "overload"));
}

TEST(Overload, ReadsTheQueueOfLogs) {
  const auto log = [](double usage) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += fmt::format(
          "INFO 01-01 00:{:02}:{:02} [loggers.py:111] Engine 000: Avg prompt throughput: 10.0 "
          "tokens/s, Avg generation throughput: 100.0 tokens/s, Running: 8 reqs, Waiting: 4 reqs, "
          "GPU KV cache usage: {}%, Prefix cache hit rate: 0.0%\n",
          i / 6, i % 6 * 10, usage);
    }
    return text;
  };
  const Diagnosis d = Of(log(95));
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_DOUBLE_EQ(Find(d, "overload")->evidence[0].value, 390);
  EXPECT_TRUE(Abstained(d, "overload"));  // of latencies
  EXPECT_EQ(Find(Of(log(50)), "overload"), nullptr);
}

TEST(Overload, PreemptionsIncreaseBeyondChance) {
  const auto page = [](double early, double late) {
    return [=](int i) {
      return Page{.requests = 20.0 * i,
                  .within_5s = 20.0 * i,
                  .within_1s = 20.0 * i,
                  .preemptions = early * std::min(i, 30) + late * std::max(i - 30, 0)};
    };
  };
  const Diagnosis d = Of(Scrapes(61, page(0, 1)));
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_NE(FirstEvidence(d).find("preemption: 0 in the first half of the recording, 30 in"),
            std::string::npos)
      << FirstEvidence(d);
  EXPECT_TRUE(IsClean(Of(Scrapes(61, page(1, 1.2))), "overload"));
  EXPECT_TRUE(IsClean(Of(Scrapes(61, page(1, 0))), "overload"));
}

// Sequences are preempted together: one reading of many is one event.
TEST(Overload, OneBurstOfPreemptionsIsNoIncrease) {
  const auto page = [](int i) {
    return Page{.requests = 20.0 * i,
                .within_5s = 20.0 * i,
                .within_1s = 20.0 * i,
                .preemptions = i > 45 ? 500.0 : 0};
  };
  EXPECT_TRUE(IsClean(Of(Scrapes(61, page)), "overload"));
  EXPECT_TRUE(IsClean(Of(Scrapes(61, page), R"({"overload.preemption_sigmas": 0})"), "overload"));
}

// vLLM states preemptions only where there were some: the halves are those of the whole log.
TEST(Overload, LinesWithoutPreemptionsAreReadings) {
  const auto log = [](int from) {
    std::string text;
    for (int i = 0; i < 240; ++i) {
      text += fmt::format(
          "INFO 01-01 00:{:02}:{:02} [loggers.py:111] Engine 000: Avg prompt throughput: 10.0 "
          "tokens/s, Avg generation throughput: 100.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, "
          "{}GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%\n",
          i / 6, i % 6 * 10, i >= from && i < from + 40 && i % 2 == 0 ? "Preemptions: 2, " : "");
    }
    return text;
  };
  EXPECT_EQ(Find(Of(log(60)), "overload"), nullptr);
  const Diagnosis d = Of(log(180));
  EXPECT_NE(FirstEvidence(d).find("0 in the first half of the recording, 20 in"), std::string::npos)
      << FirstEvidence(d);
}

TEST(Overload, RetractionsArePreemptions) {
  std::string text;
  for (int i = 0; i < 120; ++i) {
    const std::string at = fmt::format("[2025-08-18 02:{:02}:{:02} TP0] ", i / 6, i % 6 * 10);
    text += at +
            "Decode batch. #running-req: 8, #token: 1000, token usage: 0.50, cuda graph: True, "
            "gen throughput (token/s): 100.0, #queue-req: 0, \n";
    if (i >= 100) {
      text += at +
              "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.5 "
              "-> 0.6\n";
    }
  }
  const Diagnosis d = Of(text);
  ASSERT_NE(Find(d, "overload"), nullptr);
  EXPECT_EQ(Find(d, "overload")->title.key, "overload.title.preemptions");
  EXPECT_DOUBLE_EQ(Find(d, "overload")->evidence[0].value, 20);
}

std::vector<std::string> OpenParts(const Diagnosis& d) {
  std::vector<std::string> keys;
  for (const Abstention& a : d.findings.abstained) {
    if (a.id != "overload") continue;
    keys.emplace_back(a.why.key);
    if (!a.why.args.empty() && a.why.args[0].first == "metric") keys.back() = a.why.args[0].second;
  }
  return keys;
}

// A gap between two readings may have had room in the cache.
TEST(Overload, ReadingsFarApartLeaveTheQueueOpen) {
  const auto page = [](int i) {
    return Page{.requests = 200.0 * i,
                .within_5s = 200.0 * i,
                .within_1s = 200.0 * i,
                .waiting = 50,
                .usage = 0.99};
  };
  EXPECT_NE(Find(Of(Scrapes(60, page, 60)), "overload"), nullptr);
  const Diagnosis d = Of(Scrapes(60, page, 61));
  EXPECT_EQ(Find(d, "overload"), nullptr);
  EXPECT_EQ(OpenParts(d), std::vector<std::string>{"abstain.no_queue_windows"});
}

TEST(Overload, EachOpenPartIsNamed) {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += fmt::format("# Time: {}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n",
                        1790000000 + i * kStepS);
  }
  EXPECT_EQ(OpenParts(Of(text)),
            (std::vector<std::string>{"TTFT", "ITL", "abstain.no_preemption_windows"}));
  EXPECT_EQ(OpenParts(Of(Scrapes(2, Late(0)))),
            std::vector<std::string>{"abstain.no_load_windows"});
}

TEST(Overload, AbstainsWithoutWindows) {
  // Too short; without times; too few requests.
  EXPECT_TRUE(Abstained(Of(Scrapes(10, Late(4))), "overload"));
  std::string untimed = Scrapes(300, Late(4));
  for (size_t at = 0; (at = untimed.find("# Time:", at)) != std::string::npos;) {
    untimed.replace(at, 7, "# Zeit:");
  }
  EXPECT_TRUE(Abstained(Of(untimed), "overload"));
  EXPECT_EQ(Find(Of(untimed), "overload"), nullptr);
  const auto rare = [](int i) { return Page{.requests = 1.0 * i, .within_5s = 0, .within_1s = 0}; };
  EXPECT_TRUE(Abstained(Of(Scrapes(300, rare)), "overload"));
  EXPECT_EQ(Find(Of(Scrapes(300, rare)), "overload"), nullptr);
}

// Times of another age are none, and their distances do not overflow.
TEST(Overload, TimesFarApartAreRead) {
  std::string scrapes;
  for (const char* time : {"-8.9e9", "-4.5e9", "4.5e9", "8.9e9"}) {
    std::string page = Scrapes(1, Late(4));
    page.replace(page.find("1790000000"), 10, time);
    scrapes += page;
  }
  EXPECT_EQ(Find(Of(scrapes), "overload"), nullptr);
  const std::string line =
      " [x.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg "
      "generation throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 3 reqs, "
      "GPU KV cache usage: 99.0%, Preemptions: 1\n";
  std::string log;
  for (const char* date : {"1900-01-01", "1970-01-01", "2200-12-31"}) {
    log += "INFO " + std::string(date) + " 00:00:00" + line;
  }
  const Diagnosis d = Of(log);
  EXPECT_EQ(Find(d, "overload"), nullptr);  // a reading in two centuries is no stretch
  EXPECT_EQ(d.timeline->log_lines.size(), 3u);
}

TEST(Overload, WindowsAreInOrder) {
  const auto wrong = Thresholds::FromJson(R"({"overload.fast_window_s": 7200})");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("overload.slow_window_s"), std::string::npos);
}

TEST(Histograms, OfAllLabelSetsAreSummedAndCutScrapesLeftOut) {
  const Timeline t = ReadText(
      "# Time: 100\n"
      "x:time_to_first_token_seconds_bucket{engine=\"0\",le=\"1\"} 1\n"
      "x:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\"} 2\n"
      "x:time_to_first_token_seconds_bucket{engine=\"1\",le=\"1\"} 10\n"
      "x:time_to_first_token_seconds_bucket{engine=\"1\",le=\"+Inf\"} 20\n"
      "# Time: 110\n"
      "x:time_to_first_token_seconds_bucket{engine=\"0\",le=\"1\"} 5\n");
  const auto found = FindHistograms(t, {"time_to_first_token"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "x:time_to_first_token_seconds");
  ASSERT_EQ(found[0].size(), 1u);
  EXPECT_EQ(found[0].cumulative[0], (std::vector<double>{11, 22}));
  EXPECT_TRUE(FindHistograms(t, {"inter_token"}).empty());
  // Counts that fall from a bucket to the next one are none.
  const Timeline broken = ReadText(
      "# Time: 100\n"
      "x:time_to_first_token_seconds_bucket{le=\"1\"} 9\n"
      "x:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n"
      "x:other 1\n");
  EXPECT_EQ(FindHistograms(broken, {"time_to_first_token"}).at(0).size(), 0u);
}

TEST(Overload, JudgesTheTimeBetweenTokensAndNoMeansOfRequests) {
  const auto scrapes = [](const std::string& name) {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += fmt::format(
          "# Time: {0}\n{1}_bucket{{le=\"0.2\"}} {2}\n{1}_bucket{{le=\"+Inf\"}} {3}\nx:other 1\n",
          1790000000 + i * kStepS, name, 16 * i, 20 * i);
    }
    return text;
  };
  EXPECT_NE(Find(Of(scrapes("vllm:inter_token_latency_seconds")), "overload"), nullptr);
  EXPECT_NE(Find(Of(scrapes("vllm:time_per_output_token_seconds")), "overload"), nullptr);
  EXPECT_EQ(Find(Of(scrapes("vllm:request_time_per_output_token_seconds")), "overload"), nullptr);
}

TEST(Histograms, AreInSecondsByTheirNames) {
  const auto found = [](const std::string& name) {
    const Timeline t = ReadText("# Time: 100\n" + name + "_bucket{le=\"1\"} 1\n" + name +
                                "_bucket{le=\"+Inf\"} 2\nx:other 1\n");
    return FindHistograms(t, {"time_to_first_token", "time_per_output_token"}).size();
  };
  EXPECT_EQ(found("vllm:time_to_first_token_seconds"), 1u);
  EXPECT_EQ(found("gen_ai_server_time_to_first_token"), 1u);
  EXPECT_EQ(found("vllm:time_per_output_token_seconds"), 1u);
  EXPECT_EQ(found("x_time_to_first_token_ms"), 0u);
  EXPECT_EQ(found("x_time_to_first_token"), 0u);
  EXPECT_EQ(found("vllm:request_time_per_output_token_seconds"), 0u);
}

TEST(Histograms, BoundsAreReadFromTheirOwnKey) {
  const auto labels = SplitBucketLabels("a=\"x\",le=\"0.5\",role=\"decode\"");
  ASSERT_TRUE(labels);
  EXPECT_EQ(labels->bound, 0.5);
  EXPECT_EQ(labels->others, "a=\"x\",,role=\"decode\"");
  ASSERT_TRUE(SplitBucketLabels("bundle=\"3\",le=\"5\""));
  EXPECT_EQ(SplitBucketLabels("bundle=\"3\",le=\"5\"")->bound, 5);
  for (const char* none : {"le=\"NaN\"", "le=\"-inf\"", "le=\"5s\"", "le=\"5", "role=\"5\"", ""}) {
    EXPECT_FALSE(SplitBucketLabels(none)) << none;
  }
}

TEST(Histograms, BoundsAreThoseOfMostScrapes) {
  std::string text =
      "# Time: 90\n"
      "x:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n";
  for (int i = 0; i < 3; ++i) {
    text += fmt::format(
        "# Time: {}\n"
        "x:time_to_first_token_seconds_bucket{{le=\"1\"}} {}\n"
        "x:time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {}\n",
        100 + i, i + 1, i + 2);
  }
  const auto found = FindHistograms(ReadText(text), {"time_to_first_token"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].bounds.size(), 2u);
  EXPECT_EQ(found[0].begins, (std::vector<bool>{true, false, false}));
}

}  // namespace
}  // namespace fathom::diagnose
