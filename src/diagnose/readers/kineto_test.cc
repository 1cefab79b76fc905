#include "diagnose/readers/kineto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

// One trace around `events`, with the header that current versions write.
std::string Trace(std::string_view events) {
  return std::string(R"({"schemaVersion": 1, "baseTimeNanoseconds": 1700000000000000000,
"displayTimeUnit": "ms", "traceEvents": [)")
      .append(events)
      .append("]}");
}

constexpr std::string_view kGoodEvent =
    R"({"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 1, "ts": 5.250, "dur": 1})";

TEST(Kineto, CudaGraphDecodeOnH200) {
  const Timeline t = ReadFile("kineto/llama_cudagraph_decode.json.gz");
  const Source& source = t.sources[0];
  EXPECT_EQ(source.format, "kineto");
  EXPECT_EQ(source.stats.bytes, 273522u);
  EXPECT_EQ(source.stats.records, 796u);
  EXPECT_EQ(source.stats.kept, 395u);
  EXPECT_EQ(source.stats.ignored, 401u);
  EXPECT_EQ(source.stats.dropped(), 0u);
  EXPECT_EQ(CountCategory(t, Category::kKernel), 318u);
  EXPECT_EQ(CountCategory(t, Category::kAnnotation), 12u);
  EXPECT_EQ(CountCategory(t, Category::kRuntime), 25u);
  EXPECT_EQ(source.clock, ClockDomain::kUnix);
  EXPECT_EQ(source.producer, "cuda_runtime 13000, cupti 130001");
  EXPECT_EQ(source.record_shapes, true);
  EXPECT_EQ(source.with_stack, std::nullopt);
  ASSERT_EQ(source.devices.size(), 1u);
  EXPECT_EQ(source.devices[0].name, "NVIDIA H200");
  EXPECT_EQ(source.devices[0].num_sms, 132);
  EXPECT_EQ(source.devices[0].compute_major, 9);
  EXPECT_EQ(source.devices[0].shared_bytes_per_block_optin, 232448);

  const size_t step = FindSlice(t, "decode_step_0");
  ASSERT_NE(step, kNone);
  // baseTimeNanoseconds 1790857026000000000 + ts 5104433376815.930 us, dur 3567.105 us
  EXPECT_EQ(t.slices.start_ns[step], 1795961459376815930);
  EXPECT_EQ(t.slices.dur_ns[step], 3567105);
  EXPECT_EQ(t.slices.external[step], 13825u);
  EXPECT_EQ(t.SliceTrack(step).kind, TrackKind::kCpuThread);
  EXPECT_EQ(t.SliceTrack(step).pid, 420);
}

TEST(Kineto, WhatIsNoJsonIsRefused) {
  for (const char* text : {"", " \n", "\xef\xbb\xbf", " \xef\xbb\xbf{}", "x"}) {
    Result<Input> input = Input::FromMemory("text", text);
    ASSERT_TRUE(input);
    Timeline timeline;
    const SourceId source = timeline.AddSource("text", "kineto");
    EXPECT_FALSE(kKinetoReader.read(*input, timeline, source)) << text;
  }
}

TEST(Kineto, KernelDetail) {
  const Timeline t = ReadText(Trace(
      R"({"ph": "X", "cat": "kernel", "name": "k<\"a\">", "pid": 0, "tid": 7, "ts": 1.001, "dur": 2,
      "args": {"External id": 12, "queued": 0, "device": 3, "context": 1, "stream": 20,
      "correlation": 77, "registers per thread": 168, "shared memory": 49152,
      "blocks per SM": 0.5, "grid": [66, 2, 1], "block": [128, 1, 1],
      "occupancy": {"x": [1, {"y": "}"}]}, "graph id": 5, "graph node id": 281474976710661}})"));
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_EQ(t.SliceName(0), "k<\"a\">");
  EXPECT_EQ(t.slices.start_ns[0], 1700000000000001001);
  EXPECT_EQ(t.slices.correlation[0], 77u);
  EXPECT_EQ(t.SliceTrack(0).kind, TrackKind::kGpuStream);
  EXPECT_EQ(t.SliceTrack(0).device, 3);
  EXPECT_EQ(t.SliceTrack(0).stream, 20);
  const KernelDetail& detail = t.kernels[t.slices.detail[0]];
  EXPECT_EQ(detail.grid.count(), 132u);
  EXPECT_EQ(detail.block.x, 128u);
  EXPECT_EQ(detail.registers_per_thread, 168u);
  EXPECT_EQ(detail.shared_bytes, 49152u);
  EXPECT_EQ(detail.graph_node_id, 281474976710661u);
  EXPECT_TRUE(detail.in_graph);
}

TEST(Kineto, RocmGraphReplayIsMarked) {
  const Timeline t = ReadFile("kineto/sglang_qwen3-8b_decode_rocm.json.gz");
  EXPECT_EQ(CountCategory(t, Category::kKernel), 555u);
  EXPECT_EQ(CountCategory(t, Category::kPython), 821u);
  size_t replayed = 0;
  for (const KernelDetail& kernel : t.kernels) replayed += kernel.in_graph;
  EXPECT_EQ(replayed, 544u);  // of 555, the 11 others have a grid
  EXPECT_EQ(t.sources[0].with_stack, true);
  EXPECT_EQ(t.launches.size(), 14u);
}

TEST(Kineto, SynchronisationOnItsStream) {
  const Timeline t = ReadFile("kineto/hta_cuda_event_sync_multi_stream.json.gz");
  EXPECT_EQ(CountCategory(t, Category::kSync), 5u);
  EXPECT_EQ(t.sources[0].rank, 0);
  const size_t sync = FindSlice(t, "Event Sync");
  ASSERT_NE(sync, kNone);
  EXPECT_EQ(t.Name(t.syncs[t.slices.detail[sync]].kind), "Event Sync");
}

TEST(Kineto, MultiMemberGzip) {
  const Timeline t = ReadFile("defects/multi_member.json.gz");
  EXPECT_EQ(t.sources[0].stats.records, 71u);
  EXPECT_EQ(DefectCountOf(t, Defect::kTruncated), 0u);
}

TEST(Kineto, TruncatedGzipKeepsWhatIsThere) {
  const Timeline t = ReadFile("defects/truncated_member.json.gz");
  EXPECT_EQ(t.slices.size(), 10u);
  EXPECT_EQ(DefectCountOf(t, Defect::kTruncated), 1u);
}

TEST(Kineto, TruncatedJsonKeepsWhatIsThere) {
  const Timeline t = ReadFile("defects/truncated.json");
  EXPECT_EQ(t.slices.size(), 7u);
  EXPECT_EQ(DefectCountOf(t, Defect::kTruncated), 1u);
  EXPECT_EQ(t.sources[0].stats[Defect::kTruncated].first_offset, 8992u);
}

TEST(Kineto, InfiniteBandwidth) {
  const Timeline t = ReadFile("defects/inf_bandwidth_kineto105.json");
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_EQ(t.copies[0].bytes, 200u);
  EXPECT_EQ(t.copies[0].kind, CopyKind::kHostToDevice);
  EXPECT_TRUE(t.copies[0].pageable_host);
  EXPECT_EQ(t.SliceTrack(0).stream, 7);
  EXPECT_EQ(DefectCountOf(t, Defect::kNonFinite), 1u);
}

TEST(Kineto, RawLineBreakInName) {
  const Timeline t = ReadFile("defects/raw_newline_in_name_pytorch113001.json");
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_THAT(std::string(t.SliceName(0)), testing::HasSubstr("\"IMPL\")\n(1): <module>"));
  EXPECT_EQ(DefectCountOf(t, Defect::kControlByte), 1u);
  EXPECT_EQ(t.python[0].id, 142594u);
}

TEST(Kineto, ZeroTimeKernelIsDropped) {
  const Timeline t = ReadFile("defects/ts_zero_kernel_kineto109.json");
  EXPECT_EQ(CountCategory(t, Category::kKernel), 0u);
  EXPECT_EQ(CountCategory(t, Category::kRuntime), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kZeroTime), 1u);
}

struct Broken {
  const char* what;
  const char* event;
  const char* name;  // of the recovered slice; nullptr: it is lost
  Defect defect;
};

class KinetoRecovery : public testing::TestWithParam<Broken> {};

TEST_P(KinetoRecovery, NextEventIsRead) {
  const std::string good(kGoodEvent);
  const Timeline t = ReadText(Trace(good + ",\n" + GetParam().event + ",\n" + good));
  size_t good_slices = 0;
  for (size_t i = 0; i < t.slices.size(); ++i) good_slices += t.SliceName(i) == "good";
  EXPECT_EQ(good_slices, 2u);
  EXPECT_EQ(DefectCountOf(t, GetParam().defect), 1u);
  EXPECT_EQ(t.sources[0].stats.records, 3u);
  if (GetParam().name == nullptr) {
    EXPECT_EQ(t.slices.size(), 2u);
    EXPECT_EQ(t.sources[0].stats.dropped(), 1u);
  } else {
    ASSERT_EQ(t.slices.size(), 3u);
    EXPECT_EQ(t.SliceName(1), GetParam().name);
    EXPECT_EQ(t.slices.start_ns[1], 1700000000000009500);
    EXPECT_EQ(t.slices.correlation[1], 4u);
    EXPECT_EQ(t.sources[0].stats.dropped(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Defects, KinetoRecovery,
    testing::Values(
        Broken{
            "missing closing quote",
            R"({"ph": "X", "cat": "cpu_op", "name": "a b, "pid": 1, "tid": 1, "ts": 9.5, "dur": 1,
                   "args": {"correlation": 4}})",
            "a b", Defect::kRecovered},
        Broken{"unescaped quotes",
               R"({"ph": "X", "cat": "cpu_op", "name": "f("x") {y}", "pid": 1, "tid": 1, "ts": 9.5,
                   "dur": 1, "args": {"correlation": 4}})",
               R"(f("x") {y})", Defect::kRecovered},
        Broken{"backslash before the quote",
               R"({"ph": "X", "cat": "cpu_op", "name": "C:\dir\", "pid": 1, "tid": 1, "ts": 9.5,
                   "dur": 1, "args": {"correlation": 4}})",
               R"(C:\dir\)", Defect::kRecovered},
        Broken{"missing comma",
               R"({"ph": "X" "cat": "cpu_op", "name": "m", "pid": 1, "tid": 1, "ts": 9.5, "dur": 1,
                   "args": {"correlation": 4}})",
               "m", Defect::kRecovered},
        Broken{"windows path",
               R"({"ph": "X", "cat": "cpu_op", "name": "C:\Users\me", "pid": 1, "tid": 1, "ts": 9.5,
                   "dur": 1, "args": {"correlation": 4}})",
               R"(C:\Users\me)", Defect::kBadEscape},
        Broken{
            "bad number",
            R"({"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": nan, "dur": 1})",
            nullptr, Defect::kBadTime},
        Broken{
            "time out of range",
            R"({"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1e40, "dur": 1})",
            nullptr, Defect::kBadTime},
        Broken{"no time", R"({"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1})",
               nullptr, Defect::kBadTime},
        Broken{"not an object", "null", nullptr, Defect::kMalformed},
        Broken{"garbage", R"({"ph": "X", "ca)", nullptr, Defect::kMalformed},
        Broken{"unknown phase", R"({"ph": "Z", "name": "n", "pid": 1, "tid": 1, "ts": 9.5})",
               nullptr, Defect::kUnknownRecord}),
    [](const auto& info) {
      std::string name = info.param.what;
      for (char& c : name) c = c == ' ' ? '_' : c;
      return name;
    });

TEST(Kineto, EveryTruncationIsReadWithoutInvention) {
  const std::string whole = Trace(std::string(kGoodEvent) + ",\n" + std::string(kGoodEvent));
  const size_t events = whole.find("traceEvents");
  for (size_t length = events + 14; length < whole.size(); ++length) {
    const Timeline t = ReadText(whole.substr(0, length));
    EXPECT_LE(t.slices.size(), 2u);
    for (size_t i = 0; i < t.slices.size(); ++i) EXPECT_EQ(t.SliceName(i), "good");
    EXPECT_EQ(DefectCountOf(t, Defect::kTruncated), 1u) << length;
  }
}

TEST(Kineto, UnsignedIdsKeepTheirBits) {
  const Timeline t = ReadText(Trace(
      R"({"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": 7, "ts": 9.5, "dur": 1, "args":
      {"device": 0, "stream": 7, "Collective name": "allreduce", "In msg nelems": 4096, "Group size": 8,
       "dtype": "BFloat16", "Comms Id": 17293822569102704640, "Process Group Ranks": "[0, 1]"}})"));
  ASSERT_EQ(t.collectives.size(), 1u);
  EXPECT_EQ(t.collectives[0].comm_id, 17293822569102704640u);
  EXPECT_EQ(t.collectives[0].in_elements, 4096);
  EXPECT_EQ(t.Name(t.collectives[0].dtype), "BFloat16");
  EXPECT_EQ(t.kernels[0].collective, 0u);
  EXPECT_EQ(DefectCountOf(t, Defect::kBigInteger), 1u);
}

TEST(Kineto, BaseTimeAfterTheEvents) {
  const Timeline t =
      ReadText(R"({"traceEvents": [)" + std::string(kGoodEvent) +
               R"(], "displayTimeUnit": "ns", "baseTimeNanoseconds": 1700000000000000000})");
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_EQ(t.slices.start_ns[0], 1700000000000005250);
}

TEST(Kineto, BareArrayAndLegacyNames) {
  const Timeline t = ReadText(
      R"([{"ph": "X", "cat": "Kernel", "name": "k", "pid": 2, "tid": "stream 7",
      "ts": 1615207264505000.125, "dur": 6, "args": {"external id": 3}}])");
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_EQ(t.slices.category[0], Category::kKernel);
  EXPECT_EQ(t.slices.start_ns[0], 1615207264505000125);
  EXPECT_EQ(t.slices.external[0], 3u);
  EXPECT_EQ(t.SliceTrack(0).device, 2);
  EXPECT_EQ(t.SliceTrack(0).stream, 7);
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kUnix);
}

TEST(Kineto, ArgumentsBeforeCategoryAndStringPids) {
  const Timeline t = ReadText(Trace(
      R"({"args": {"External id": 9, "Input Dims": [[1, 8],
                                                      []]}, "cat": "cpu_op", "dur": 1, "name": "n",
       "ph": "X", "pid": "Spans", "tid": -3, "ts": 1},
      {"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 2, "dur": 1,
       "args": {"Input Dims": [[1,8],[]]}})"));
  ASSERT_EQ(t.ops.size(), 2u);
  EXPECT_EQ(t.Name(t.ops[0].input_dims), "[[1,8],[]]");
  EXPECT_EQ(t.ops[0].input_dims, t.ops[1].input_dims);
  EXPECT_EQ(t.slices.external[0], 9u);
  EXPECT_EQ(t.SliceTrack(0).pid, -1);
  EXPECT_EQ(t.SliceTrack(0).tid, -3);
}

TEST(Kineto, BeginAndEndNest) {
  const Timeline t = ReadText(Trace(
      R"({"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 1},
         {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 2},
         {"ph": "E", "pid": 1, "tid": 1, "ts": 5}, {"ph": "E", "pid": 1, "tid": 1, "ts": 7},
         {"ph": "E", "pid": 1, "tid": 1, "ts": 8}, {"ph": "B", "name": "open", "pid": 1, "tid": 1, "ts": 9})"));
  ASSERT_EQ(t.slices.size(), 2u);
  EXPECT_EQ(t.SliceName(0), "inner");
  EXPECT_EQ(t.slices.dur_ns[0], 3000);
  EXPECT_EQ(t.slices.dur_ns[1], 6000);
  EXPECT_EQ(DefectCountOf(t, Defect::kUnmatchedEnd), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kUnmatchedBegin), 1u);
}

TEST(Kineto, CountersAndAllocator) {
  const Timeline t = ReadText(Trace(
      R"({"ph": "C", "cat": "hardware_counters", "name": "dram__bytes_read.sum", "ts": 3,
          "pid": "GPU 1 Counters", "tid": 0, "args": {"": 123}},
         {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 4,
          "args": {"Total Reserved": 4096, "Total Allocated": 1024, "Bytes": -512, "Device Id": 0,
                   "Device Type": 1, "Addr": 139725698498560}})"));
  ASSERT_EQ(t.samples.size(), 4u);
  const Series& counter = t.series[t.samples.series[0]];
  EXPECT_EQ(t.Name(counter.name), "dram__bytes_read.sum");
  EXPECT_EQ(counter.device, 1);
  EXPECT_EQ(t.samples.value[0], 123);
  EXPECT_EQ(t.samples.t_ns[0], 1700000000000003000);
  EXPECT_EQ(t.samples.value[1], -512);
  EXPECT_EQ(t.Name(t.series[t.samples.series[3]].name), "allocator.reserved_bytes");
  EXPECT_EQ(t.slices.size(), 0u);
}

TEST(Kineto, FathomsOwnTrace) {
  const Timeline t = ReadText(R"({"traceEvents":[
{"ph":"b","pid":1,"tid":2,"ts":10.000,"name":"request","cat":"request","id":7,"args":{"body_bytes":9}},
{"ph":"b","pid":1,"tid":2,"ts":10.000,"name":"queue","cat":"request","id":7,"args":{}},
{"ph":"b","pid":1,"tid":2,"ts":11.000,"name":"prefix_lookup","cat":"request","id":7,"args":{"op":"prefix_lookup","found":64,"asked":100}},
{"ph":"e","pid":1,"tid":2,"ts":12.000,"name":"prefix_lookup","cat":"request","id":7,"args":{}},
{"ph":"e","pid":1,"tid":2,"ts":15.000,"name":"queue","cat":"request","id":7,"args":{}},
{"ph":"n","pid":1,"tid":2,"ts":30.000,"name":"token","cat":"request","id":7,"args":{"index":0,"step":3}},
{"ph":"n","pid":1,"tid":2,"ts":40.000,"name":"token","cat":"request","id":7,"args":{"index":1,"step":4}},
{"ph":"n","pid":1,"tid":2,"ts":45.000,"name":"finished","cat":"request","id":7,"args":{"reason":"stop","tokens":2}},
{"ph":"e","pid":1,"tid":2,"ts":50.000,"name":"request","cat":"request","id":7,"args":{}},
{"ph":"e","pid":1,"tid":2,"ts":51.000,"name":"request","cat":"request","id":8,"args":{}},
{"ph":"X","pid":1,"tid":1,"ts":20.000,"dur":5.000,"name":"step 3","cat":"step","args":{"op":"step","step":3,"tokens":100,"prompt_tokens":100}},
{"ph":"X","pid":1,"tid":1,"ts":30.000,"dur":5.000,"name":"step 4","cat":"step","args":{"op":"step","step":4,"tokens":8,"prompt_tokens":0}},
{"ph":"X","pid":1,"tid":1,"ts":31.000,"dur":2.000,"name":"attention L3","cat":"op","args":{"op":"attention","layer":3,"step":4,"bytes":5,"flops":6}}
],"displayTimeUnit":"ms","otherData":{"schema":"fathom.trace/1","events":12,"dropped_events":4,"stopped":"","origin_unix_ns":"1700000000000000000"}})");
  EXPECT_EQ(t.sources[0].format, "fathom-trace");
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kUnix);
  EXPECT_EQ(DefectCountOf(t, Defect::kDropped), 4u);
  EXPECT_EQ(DefectCountOf(t, Defect::kUnmatchedEnd), 1u);
  ASSERT_EQ(t.requests.size(), 1u);
  const Request& request = t.requests[0];
  EXPECT_EQ(request.arrival_ns, 1700000000000010000);
  EXPECT_DOUBLE_EQ(request.ttft_s, 20e-6);
  EXPECT_DOUBLE_EQ(request.e2e_s, 40e-6);
  EXPECT_DOUBLE_EQ(request.queue_s, 5e-6);
  EXPECT_DOUBLE_EQ(request.cached_tokens, 64);
  EXPECT_DOUBLE_EQ(request.prompt_tokens, 100);
  EXPECT_DOUBLE_EQ(request.completion_tokens, 2);
  EXPECT_EQ(t.spans.size(), 6u);
  EXPECT_NE(FindSlice(t, "step[EXTEND toks=100]"), kNone);
  const size_t decode = FindSlice(t, "step[DECODE bs=8]");
  ASSERT_NE(decode, kNone);
  EXPECT_EQ(t.slices.category[decode], Category::kAnnotation);
  EXPECT_EQ(t.slices.category[FindSlice(t, "attention L3")], Category::kEngine);
}

TEST(Kineto, InvalidUtf8IsReplaced) {
  const Timeline t = ReadText(Trace(
      "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"a\xff\xc3\xa9\", \"pid\": 1, \"tid\": 1, "
      "\"ts\": 1, \"dur\": 1}"));
  ASSERT_EQ(t.slices.size(), 1u);
  EXPECT_EQ(t.SliceName(0), "a\xef\xbf\xbd\xc3\xa9");
  EXPECT_EQ(DefectCountOf(t, Defect::kInvalidUtf8), 1u);
}

TEST(Kineto, EventLargerThanTheWindow) {
  const std::string name(3 << 20, 'n');
  const std::string good(kGoodEvent);
  const Timeline t = ReadText(Trace(
      good + R"(, {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 9, "dur": 1, "name": ")" +
      name + "\"}, " + good));
  ASSERT_EQ(t.slices.size(), 3u);
  EXPECT_EQ(t.SliceName(1).size(), name.size());
}

// Where a defect first happened is told in bytes of the uncompressed input.
TEST(Kineto, DefectsSayWhere) {
  const std::string good(kGoodEvent);
  const std::string text =
      Trace(good + ",\n" + R"({"ph": "X", "name": "late", "ts": NaN, "dur": 1})");
  const Timeline t = ReadText(text);
  const DefectCount& bad = t.sources[0].stats[Defect::kBadTime];
  EXPECT_EQ(bad.count, 1u);
  EXPECT_EQ(text.substr(bad.first_offset, 24), R"({"ph": "X", "name": "lat)");
}

// A job of thousands of ranks: the events begin beyond what detection looks at.
TEST(Kineto, LongListsOfRanksInFront) {
  std::string ranks;
  while (ranks.size() < Input::kPrefixBytes) ranks += "1234, ";
  const Timeline t = ReadText(R"({"distributedInfo": {"rank": 3, "pg_config": [{"ranks": [)" +
                              ranks + "0]}]}, \"traceEvents\": [" + std::string(kGoodEvent) + "]}");
  EXPECT_EQ(t.sources[0].format, "kineto");
  EXPECT_EQ(t.sources[0].rank, 3);
  EXPECT_NE(FindSlice(t, "good"), kNone);
}

TEST(Kineto, TheOnlyRocmDeviceIsTheOneWithWork) {
  const Timeline t = ReadFile("kineto/sglang_qwen3-8b_decode_rocm.json.gz");
  ASSERT_EQ(t.sources[0].devices.size(), 1u);
  EXPECT_EQ(t.sources[0].devices[0].name, "AMD Instinct MI300X");
  EXPECT_EQ(t.sources[0].devices[0].id, 9);
  EXPECT_FALSE(t.sources[0].devices[0].is_cuda());
}

}  // namespace
}  // namespace fathom::diagnose
