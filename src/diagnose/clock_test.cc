#include "diagnose/clock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "diagnose/report/catalogue.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

std::string AlignmentText(const Source& source) {
  return Say(Language::kEnglish, Text{source.alignment, source.alignment_args});
}

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kUtc = 1'766'729'320 * kSecond;  // 2025-12-26 06:08:40

// A timeline of several inputs, aligned.
Timeline Fuse(const std::vector<std::string>& inputs) {
  Timeline timeline;
  for (const std::string& bytes : inputs) {
    Result<Input> input =
        Input::FromMemory("input" + std::to_string(timeline.sources.size()), bytes);
    const Result<SourceId> read = ReadArtifact(*input, timeline);
    EXPECT_TRUE(read) << read.error().message;
  }
  AlignClocks(timeline);
  return timeline;
}

// A trace of `count` annotations, 10 ms apart from `start_us` on, in UTC when `base_ns` is given.
std::string Annotations(int64_t base_ns, double start_us, int count, double jitter_us = 0) {
  std::string events;
  for (int i = 0; i < count; ++i) {
    events += fmt::format(
        R"({}{{"ph":"X","cat":"user_annotation","name":"step_{}","pid":1,"tid":1,"ts":{:.3f},"dur":9}})",
        i == 0 ? "" : ",", i, start_us + i * 10000.0 + (i % 2 == 0 ? jitter_us : -jitter_us));
  }
  const std::string base = base_ns == 0 ? "" : fmt::format(R"("baseTimeNanoseconds":{},)", base_ns);
  return "{" + base + R"("traceEvents":[)" + events + "]}";
}

std::string Collectives(int rank, int64_t base_ns, double skew_us) {
  std::string events;
  for (int i = 0; i < 20; ++i) {
    // Ranks enter at different times and leave together.
    const double end = 1000.0 + 500 * i + skew_us;
    const double dur = 20 + 7 * ((i + rank) % 5);
    events += fmt::format(
        R"({}{{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","pid":{},"tid":7,"ts":{:.3f},
           "dur":{:.3f},"args":{{"device":{},"stream":7,"Collective name":"allreduce","Seq":{},
           "Process Group Name":"0","Process Group Ranks":"[0, 1]"}}}})",
        i == 0 ? "" : ",", rank, end - dur, dur, rank, i);
  }
  return fmt::format(
      R"({{"baseTimeNanoseconds":{},"distributedInfo":{{"rank":{},"world_size":2}},"traceEvents":[{}]}})",
      base_ns, rank, events);
}

TEST(Clock, OneSourceIsItsOwnClock) {
  const Timeline t = Fuse({Annotations(0, 5, 3)});
  EXPECT_TRUE(t.sources[0].aligned);
  EXPECT_EQ(t.sources[0].error_ns, 0);
  EXPECT_EQ(t.slices.start_ns[0], 5000);
  EXPECT_EQ(JoinErrorNs(t, 0, 0), 0);
}

TEST(Clock, CollectiveEndsAlignRanks) {
  // Rank 1's machine is 700 us ahead.
  const Timeline t = Fuse({Collectives(0, kUtc, 0), Collectives(1, kUtc, 700)});
  EXPECT_TRUE(t.sources[1].aligned);
  EXPECT_EQ(t.sources[1].offset_ns, -700'000);
  EXPECT_LE(t.sources[1].error_ns, 2);
  EXPECT_LE(JoinErrorNs(t, 0, 1), 2);
  EXPECT_EQ(t.slices.end_ns(0), t.slices.end_ns(20));
  EXPECT_EQ(AlignmentText(t.sources[1]), "20 collective ends shared with input0");
}

TEST(Clock, RanksWithoutSharedMomentsKeepTheErrorOfUtc) {
  Timeline t = Fuse({Annotations(kUtc, 0, 5), Annotations(kUtc, 300, 5)});
  EXPECT_EQ(t.sources[1].offset_ns, -300'000);  // one process: annotations are shared
  const std::string rank1 =
      R"({"distributedInfo":{"rank":1},)" + Annotations(kUtc, 300, 5).substr(1);
  const std::string rank0 = R"({"distributedInfo":{"rank":0},)" + Annotations(kUtc, 0, 5).substr(1);
  t = Fuse({rank0, rank1});
  EXPECT_EQ(t.sources[1].offset_ns, 0);
  EXPECT_EQ(JoinErrorNs(t, 0, 1), 1'000'000);
}

TEST(Clock, AnnotationsTieARelativeClock) {
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), Annotations(0, 123456, 8, 40)});
  EXPECT_TRUE(t.sources[1].aligned);
  EXPECT_NEAR(static_cast<double>(t.slices.start_ns[9]), static_cast<double>(kUtc), 81'000);
  EXPECT_GE(t.sources[1].error_ns, 40'000);
  EXPECT_LE(t.sources[1].error_ns, 81'000);
}

TEST(Clock, TooFewOrScatteredMomentsTieNothing) {
  EXPECT_EQ(JoinErrorNs(Fuse({Annotations(kUtc, 0, 9), Annotations(0, 5, 2)}), 0, 1), INT64_MAX);
  EXPECT_EQ(JoinErrorNs(Fuse({Annotations(kUtc, 0, 9), Annotations(0, 5, 8, 9000)}), 0, 1),
            INT64_MAX);
}

TEST(Clock, AnotherRunIsNotPulledOver) {
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), Annotations(kUtc + 3600 * kSecond, 0, 8)});
  EXPECT_EQ(t.sources[1].offset_ns, 0);
}

std::string SglangLines(std::string_view date) {
  std::string log;
  for (int i = 0; i < 5; ++i) {
    log +=
        fmt::format("[{}:{:02} TP0] Decode batch, #running-req: 1, #queue-req: 0\n", date, 38 + i);
  }
  return log;
}

TEST(Clock, LogInUtc) {
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), SglangLines("2025-12-26 06:08")});
  EXPECT_TRUE(t.sources[1].aligned);
  EXPECT_EQ(t.sources[1].offset_ns, 0);
  EXPECT_EQ(t.sources[1].error_ns, kSecond);
  EXPECT_EQ(AlignmentText(t.sources[1]), "calendar time taken as UTC");
}

TEST(Clock, LogInAnotherZone) {
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), SglangLines("2025-12-26 14:08")});
  EXPECT_TRUE(t.sources[1].aligned);
  EXPECT_EQ(t.sources[1].offset_ns, -8 * 3600 * kSecond);
  EXPECT_EQ(t.log_lines[2].t_ns, kUtc);
  EXPECT_EQ(AlignmentText(t.sources[1]), "calendar time, UTC+08:00 from the overlap");
}

TEST(Clock, LogWithoutYear) {
  const std::string log =
      "INFO 12-26 06:08:40 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s\n";
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), log});
  EXPECT_TRUE(t.sources[1].aligned);
  EXPECT_EQ(t.log_lines[0].t_ns, kUtc);
}

TEST(Clock, LogOfAnotherDayIsNotAligned) {
  const Timeline t = Fuse({Annotations(kUtc, 0, 9), SglangLines("2025-12-20 06:08")});
  EXPECT_FALSE(t.sources[1].aligned);
  EXPECT_EQ(JoinErrorNs(t, 0, 1), INT64_MAX);
}

TEST(Clock, NsysSessionTiesPerf) {
  Timeline t;
  const SourceId nsys = t.AddSource("a.sqlite", "nsys-sqlite");
  const SourceId perf = t.AddSource("perf.txt", "perf-script");
  Source& session = t.sources[nsys];
  session.clock = ClockDomain::kRelative;
  session.utc_anchor_ns = kUtc;
  session.first_ns = 0;
  session.last_ns = 10 * kSecond;
  t.AddFact(nsys, "nsys.system_clock_ns", 5e9);
  Source& samples = t.sources[perf];
  samples.clock = ClockDomain::kMonotonic;
  samples.first_ns = samples.last_ns = 6 * kSecond;
  t.stack_samples.push_back({.t_ns = 6 * kSecond, .source = perf});
  AlignClocks(t);
  EXPECT_TRUE(samples.aligned);
  EXPECT_EQ(t.stack_samples[0].t_ns, kUtc + kSecond);
}

}  // namespace
}  // namespace fathom::diagnose
