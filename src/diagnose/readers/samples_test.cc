#include "diagnose/readers/samples.h"

#include <gtest/gtest.h>

#include "diagnose/test_util.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

constexpr char kHeader[] =
    R"({"schema":"fathom.samples/1","utc_ns_at_zero":1790000000000000000,"period_ms":10,)"
    R"("alignment_error_ns":20000000,"gpus":[{"name":"NVIDIA H200","memory_bytes":150000000000}]})"
    "\n";

std::string Line(int64_t t_ns, std::string_view metric, double value) {
  return fmt::format(R"({{"t_ns":{},"metric":"{}","device":0,"value":{},"half_width_ns":100}})"
                     "\n",
                     t_ns, metric, value);
}

TEST(SamplesReader, ReadsWhatDoctorRecords) {
  const Timeline t =
      ReadText(kHeader + Line(1'000'000, "gpu_busy", 0.42) +
               Line(2'000'000, "gpu_memory_busy", 0.89) + Line(11'000'000, "gpu_busy", 0.5));
  const Source& source = t.sources[0];
  EXPECT_EQ(source.format, "fathom-samples");
  EXPECT_EQ(source.stats.kept, 3u);
  EXPECT_EQ(source.clock, ClockDomain::kMonotonic);
  EXPECT_EQ(source.utc_anchor_ns, 1'790'000'000'000'000'000);
  EXPECT_EQ(source.resolution_ns, 20'000'000);
  ASSERT_EQ(source.devices.size(), 1u);
  EXPECT_EQ(source.devices[0].name, "NVIDIA H200");
  const auto busy = FindSignal(t, Signal::kGpuBusy);
  ASSERT_EQ(busy.size(), 1u);
  EXPECT_EQ(busy[0].size(), 2u);
  EXPECT_DOUBLE_EQ(busy[0].value[0], 0.42);
  EXPECT_EQ(FindSignal(t, Signal::kDramActive).size(), 1u);
}

TEST(SamplesReader, ReadsNumaPlaces) {
  const Timeline t =
      ReadText(R"({"schema":"fathom.samples/1","gpus":[{"name":"a","numa_node":1},{"name":"b"}],)"
               R"("numa_nodes":2,"threads_of":"nvml"})"
               "\n" +
               Line(1, "gpu_threads_far", 3));
  EXPECT_EQ(t.sources[0].numa_nodes, 2);
  EXPECT_TRUE(t.sources[0].threads_listed);
  ASSERT_EQ(t.sources[0].devices.size(), 2u);
  EXPECT_EQ(t.sources[0].devices[0].numa_node, 1);
  EXPECT_EQ(t.sources[0].devices[1].numa_node, -1);
  ASSERT_EQ(FindSignal(t, Signal::kGpuThreadsFar).size(), 1u);
  // A header without them, or with impossible ones, says nothing.
  const Timeline other = ReadText(
      R"({"schema":"fathom.samples/1","numa_nodes":0,"threads_of":7,"gpus":[{"numa_node":-7}]})"
      "\n" +
      Line(1, "gpu_busy", 0));
  EXPECT_EQ(other.sources[0].numa_nodes, 0);
  EXPECT_FALSE(other.sources[0].threads_listed);
  EXPECT_EQ(other.sources[0].devices[0].numa_node, -1);
}

TEST(SamplesReader, CountsWhatItCannotRead) {
  const Timeline t =
      ReadText(std::string(kHeader) + Line(1, "gpu_speed", 1) +
               "{\"t_ns\":\"x\",\"metric\":\"gpu_busy\",\"value\":1}\n" + "{broken\n" +
               Line(2, "cpu_busy", 0.5) +
               "{\"t_ns\":9223372036854775807,\"metric\":\"gpu_busy\",\"value\":1}\n" +
               "{\"t_ns\":1e300,\"metric\":\"gpu_busy\",\"value\":1}\n" +
               "{\"t_ns\":1,\"metric\":\"gpu_busy\",\"value\":1,\"device\":65536}\n");
  EXPECT_EQ(t.sources[0].stats.kept, 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kUnknownRecord), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 5u);
}

TEST(SamplesReader, RefusesAnotherVersion) {
  Timeline t;
  auto input = Input::FromMemory("x", "{\"schema\":\"fathom.samples/9\"}\n");
  ASSERT_TRUE(input);
  const auto read = ReadArtifact(*input, t);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("fathom.samples/9"), std::string::npos);
}

}  // namespace
}  // namespace fathom::diagnose
