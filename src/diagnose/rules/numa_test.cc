#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "diagnose/report/describe.h"
#include "diagnose/rules/rule_test_util.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

TEST(Numa, FromSampledLoadsAndStacks) {
  const auto run = [](MemoryLevel level, const char* symbol, int samples = 100) {
    Timeline t;
    const SourceId source = t.AddSource("perf.txt", "perf");
    const uint32_t node = t.AddStackNode(kNone, t.strings.Intern(symbol), 0);
    for (int i = 0; i < samples; ++i) {
      StackSample sample;
      sample.stack = node;
      sample.source = source;
      sample.level = i % 2 == 0 ? level : MemoryLevel::kLocalRam;
      if (level == MemoryLevel::kUnknown) sample.level = level;
      t.stack_samples.push_back(sample);
    }
    return Diagnose(std::move(t), Thresholds::Default());
  };
  ASSERT_NE(Find(run(MemoryLevel::kRemoteRam, "f"), "numa"), nullptr);
  EXPECT_EQ(Find(run(MemoryLevel::kRemoteRam, "f"), "numa")->severity, Severity::kSevere);
  EXPECT_EQ(Find(run(MemoryLevel::kLocalRam, "f"), "numa"), nullptr);
  EXPECT_NE(Find(run(MemoryLevel::kUnknown, "do_numa_page"), "numa"), nullptr);
  EXPECT_TRUE(Abstained(run(MemoryLevel::kUnknown, "f"), "numa"));  // a plain stack cannot tell
  EXPECT_EQ(Find(run(MemoryLevel::kRemoteRam, "f", 3), "numa"), nullptr);
  EXPECT_TRUE(Abstained(run(MemoryLevel::kRemoteRam, "f", 3), "numa"));
}

TEST(Numa, FromC2c) {
  const auto run = [](double local, double remote) {
    Timeline t;
    const SourceId source = t.AddSource("c2c.txt", "perf-c2c");
    t.AddFact(source, "c2c.load_local_dram", local);
    t.AddFact(source, "c2c.load_remote_dram", remote / 2);
    t.AddFact(source, "c2c.load_remote_hitm", remote / 2);
    return Diagnose(std::move(t), Thresholds::Default());
  };
  ASSERT_NE(Find(run(700, 300), "numa"), nullptr);
  EXPECT_NE(EvidenceLine(Find(run(700, 300), "numa")->evidence[0], Language::kEnglish).find("30"),
            std::string::npos);
  EXPECT_EQ(Find(run(950, 50), "numa"), nullptr);
  EXPECT_FALSE(Abstained(run(950, 50), "numa"));
  EXPECT_TRUE(Abstained(run(0, 0), "numa"));
}

// A recording of fathom doctor on a machine with one GPU on node 1: 20 readings a second, in each
// so many working threads near the GPU and far from it.
std::string Recording(int seconds, int near, int far, int gpu_node = 1, const char* of = "nvml") {
  std::string text = fmt::format(
      R"({{"schema":"fathom.samples/1","utc_ns_at_zero":0,"period_ms":10,"alignment_error_ns":1,)"
      R"("gpus":[{{"name":"NVIDIA H200","numa_node":{}}}],"numa_nodes":2,"threads_of":"{}"}})"
      "\n",
      gpu_node, of);
  for (int i = 0; i < 20 * seconds; ++i) {
    for (const auto& [metric, count] : {std::pair("near", near), std::pair("far", far)}) {
      text += fmt::format(R"({{"t_ns":{},"metric":"gpu_threads_{}","device":0,"value":{}}})"
                          "\n",
                          int64_t{i} * 50'000'000, metric, count);
    }
  }
  return text;
}

Diagnosis OfRecording(const std::string& recording) {
  return Diagnose(ReadText(recording), Thresholds::Default());
}

TEST(Numa, ThreadsFarFromTheirGpu) {
  const Diagnosis d = OfRecording(Recording(10, 3, 1));
  const Finding* numa = Find(d, "numa");
  ASSERT_NE(numa, nullptr);
  EXPECT_EQ(numa->severity, Severity::kWarn);
  ASSERT_EQ(numa->evidence.size(), 1u);
  EXPECT_DOUBLE_EQ(numa->evidence[0].value, 0.25);
  const std::string line = EvidenceLine(numa->evidence[0], Language::kEnglish);
  EXPECT_NE(line.find("25.0% of 800 readings"), std::string::npos) << line;
  EXPECT_NE(line.find("GPU 0 (node 1)"), std::string::npos) << line;
  EXPECT_NE(line.find("that the driver lists for this GPU"), std::string::npos) << line;
  ASSERT_EQ(numa->thresholds.size(), 1u);
  EXPECT_EQ(numa->thresholds[0].name, "numa.thread_share");
  EXPECT_FALSE(Abstained(d, "numa"));
  // The user named the process: the evidence says so.
  const Diagnosis by_pid = OfRecording(Recording(10, 3, 1, 1, "pid"));
  ASSERT_NE(Find(by_pid, "numa"), nullptr);
  EXPECT_NE(EvidenceLine(Find(by_pid, "numa")->evidence[0], Language::kEnglish).find("--pid"),
            std::string::npos);
}

TEST(Numa, ThreadsNearTheirGpuAreClean) {
  EXPECT_TRUE(IsClean(OfRecording(Recording(10, 9, 1)), "numa"));
}

TEST(Numa, ThreadsArePartOfWhatTheMachineDid) {
  const Diagnosis d = OfRecording(Recording(10, 9, 1));
  const auto fact = std::find_if(d.observations.begin(), d.observations.end(),
                                 [](const Observation& o) { return o.id == "gpu-threads"; });
  ASSERT_NE(fact, d.observations.end());
  EXPECT_DOUBLE_EQ(fact->value, 0.9);
  EXPECT_EQ(Say(Language::kEnglish, fact->text),
            "GPU 0 is on NUMA node 1: so were 1800 of 2000 readings of its processes' working "
            "threads");
}

TEST(Numa, FewReadingsOfThreadsDecideNothing) {
  for (const std::string& recording : {Recording(2, 1, 1), Recording(10, 0, 0)}) {
    const Diagnosis d = OfRecording(recording);
    EXPECT_EQ(Find(d, "numa"), nullptr);
    ASSERT_TRUE(Abstained(d, "numa"));
    bool stated = false;
    for (const Abstention& a : d.findings.abstained) {
      stated = stated ||
               Say(Language::kEnglish, a.why).find("it takes 100 readings") != std::string::npos;
    }
    EXPECT_TRUE(stated);
  }
}

TEST(Numa, ImpossibleCountsOfThreadsDecideNothing) {
  std::string recording = Recording(10, 9, 1);
  for (const char* metric : {"near", "far"}) {
    for (int i = 0; i < 3; ++i) {
      recording += fmt::format(R"({{"t_ns":1,"metric":"gpu_threads_{}","device":0,"value":1e308}})"
                               "\n",
                               metric);
    }
  }
  EXPECT_TRUE(IsClean(OfRecording(recording), "numa"));
}

TEST(Numa, OneNodeHasNothingFar) {
  std::string recording = Recording(1, 0, 0);
  const std::string nodes = "\"numa_nodes\":2";
  recording.replace(recording.find(nodes), nodes.size(), "\"numa_nodes\":1");
  EXPECT_TRUE(IsClean(OfRecording(recording), "numa"));
  // A recording that does not state the nodes decides nothing.
  recording.replace(recording.find("\"numa_nodes\":1"), nodes.size(), "\"x\":0");
  EXPECT_TRUE(Abstained(OfRecording(recording), "numa"));
}

}  // namespace
}  // namespace fathom::diagnose
