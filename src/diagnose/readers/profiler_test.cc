// Readers of other profilers: Nsight Systems, Nsight Compute, perf.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "diagnose/readers/ncu.h"
#include "diagnose/readers/nsys.h"
#include "diagnose/readers/perf.h"
#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

TEST(Nsys, H100TwoGpus) {
  const Timeline t = ReadFile("nsys/nsysai_h100_2gpu_1s.sqlite.gz");
  const Source& source = t.sources[0];
  EXPECT_EQ(source.format, "nsys-sqlite");
  EXPECT_EQ(source.schema, "3.25.0");
  EXPECT_EQ(source.producer, "Nsight Systems 2026.2.1.210");
  EXPECT_EQ(source.utc_anchor_ns, 1779630014975716426);
  EXPECT_EQ(source.stats.bytes, 2248704u);
  EXPECT_EQ(CountCategory(t, Category::kKernel), 3442u);
  EXPECT_EQ(CountCategory(t, Category::kMemcpy), 904u);
  EXPECT_EQ(CountCategory(t, Category::kMemset), 22u);
  EXPECT_EQ(CountCategory(t, Category::kRuntime) + CountCategory(t, Category::kDriver), 5796u);
  EXPECT_EQ(CountCategory(t, Category::kSync), 244u);
  EXPECT_EQ(CountCategory(t, Category::kNvtx), 16782u);
  EXPECT_EQ(CountCategory(t, Category::kOverhead), 198u);
  // emit_nvtx's op ids are cut off, so that names repeat.
  EXPECT_NE(FindSlice(t, "aten::view"), kNone);
  // API names come without the version of their parameters.
  EXPECT_NE(FindSlice(t, "cudaLaunchKernel"), kNone);
}

TEST(Nsys, KernelsJoinTheirLaunches) {
  const Timeline t = ReadFile("nsys/nsysai_h100_2gpu_1s.sqlite.gz");
  std::unordered_map<uint64_t, size_t> launches;
  for (size_t i = 0; i < t.slices.size(); ++i) {
    if (t.slices.category[i] == Category::kRuntime || t.slices.category[i] == Category::kDriver) {
      launches[t.slices.correlation[i]] = i;
    }
  }
  size_t joined = 0;
  for (size_t i = 0; i < t.slices.size(); ++i) {
    if (t.slices.category[i] != Category::kKernel) continue;
    const auto launch = launches.find(t.slices.correlation[i]);
    if (launch == launches.end()) continue;
    ++joined;
    EXPECT_EQ(t.SliceTrack(launch->second).pid, t.SliceTrack(i).pid);
  }
  // As a join on process and correlation in SQL gives; on the correlation alone it would be 1643.
  EXPECT_EQ(joined, 1632u);
}

TEST(Nsys, T4WithCpuSamplesAndDevice) {
  const Timeline t = ReadFile("nsys/nsightful_power_iteration.sqlite.gz");
  EXPECT_EQ(t.stack_samples.size(), 893u);
  EXPECT_EQ(CountCategory(t, Category::kOsCall), 1428u);
  EXPECT_EQ(CountCategory(t, Category::kSchedule), 209u);
  ASSERT_EQ(t.sources[0].devices.size(), 1u);
  EXPECT_EQ(t.sources[0].devices[0].name, "Tesla T4");
  EXPECT_EQ(t.sources[0].devices[0].num_sms, 40);
  EXPECT_DOUBLE_EQ(t.sources[0].devices[0].memory_bytes_per_s, 320064e6);
  EXPECT_EQ(t.sources[0].devices[0].max_threads_per_sm, 1024);
  EXPECT_EQ(DefectCountOf(t, Defect::kDropped), 4u);
}

TEST(Nsys, EnvironmentIsNeverRead) {
  const Timeline t = ReadFile("nsys/nsysai_h100_2gpu_1s.sqlite.gz");
  for (const char* secret : {"PATH=", "WORKING_DIR", "pytest -vs", "LD_LIBRARY_PATH"}) {
    for (size_t i = 0; i < t.strings.size(); ++i) {
      EXPECT_EQ(t.Name(static_cast<StringId>(i)).find(secret), std::string_view::npos) << secret;
    }
  }
}

// A database made by SQL, as the image that Input reads.
std::string Database(const char* sql) {
  sqlite3* db = nullptr;
  sqlite3_open(":memory:", &db);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, &error), SQLITE_OK) << error;
  sqlite3_int64 size = 0;
  unsigned char* image = sqlite3_serialize(db, "main", &size, 0);
  std::string bytes(reinterpret_cast<char*>(image), static_cast<size_t>(size));
  sqlite3_free(image);
  sqlite3_close(db);
  return bytes;
}

constexpr char kSmallExport[] = R"(
  CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
  INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'SECRET=1');
  CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
    gridX INTEGER, gridY INTEGER, gridZ INTEGER, clusterX INTEGER, clusterY INTEGER,
    clusterZ INTEGER, graphNodeId INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 250, 0, 7, 5, 33554432, 1, 132, 1, 1, 2, 1, 1, 9),
    (300, 200, 0, 7, 6, 33554432, 1, 1, 1, 1, 1, 1, 1, NULL), (0, 0, 0, 7, 7, 33554432, 1, 1, 1, 1, 1, 1, 1, NULL);
  CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (400, 900, 0, 7, 8, 33554432, 3);
  CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
    globalTid INTEGER);
  INSERT INTO NVTX_EVENTS VALUES (50, 950, 59, 'aten::add, seq = 5, op_id = 12, sizes = [[1, 8], []], input_op_ids = []', NULL, 33554433),
    (60, NULL, 60, 'open', NULL, 33554433), (70, NULL, 34, 'mark', NULL, 33554433);
  CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
  INSERT INTO GPU_METRICS VALUES (500, 258, 4, 88);
  CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
  INSERT INTO TARGET_INFO_GPU_METRICS VALUES (258, 4, 'SM Active [Throughput %]');
  CREATE TABLE NET_NIC_METRIC (start INTEGER, end INTEGER, globalId INTEGER, portId INTEGER,
    metricsListId INTEGER, metricsIdx INTEGER, value INTEGER);
  INSERT INTO NET_NIC_METRIC VALUES (500, 700, 77, 1, 1, 2, 4096);
  CREATE TABLE TARGET_INFO_NETWORK_METRICS (metricsListId INTEGER, metricsIdx INTEGER, name TEXT,
    description TEXT, unit TEXT);
  INSERT INTO TARGET_INFO_NETWORK_METRICS VALUES (1, 2, 'IB: Bytes sent', '', 'bytes/ms');
  CREATE TABLE NIC_ID_MAP (nicId INTEGER, globalId INTEGER);
  INSERT INTO NIC_ID_MAP VALUES (4, 77);
  CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
  INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('TOKEN', 'SECRET=2');
  CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER);
  INSERT INTO SCHED_EVENTS VALUES (10, 0, 1, 33554433), (30, 0, 0, 33554433), (75, 1, 1, 33554433), (80, 1, 0, 33554433);
  CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS SELECT 1 AS start, 2 AS end;
)";

TEST(Nsys, ScheduleWhoseTimesAreOfMixedTypes) {
  // SQLite sorts text behind numbers: the thread seems to return before it left.
  const Timeline t = ReadText(Database(R"(
  CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 250, 0, 7, 5, 33554432, 1);
  CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
  INSERT INTO StringIds VALUES (1, 'gemm');
  CREATE TABLE SCHED_EVENTS (start, cpu, isSchedIn, globalTid);
  INSERT INTO SCHED_EVENTS VALUES (30, 0, 0, 33554433), ('7ns', 1, 1, 33554433);
)"));
  EXPECT_EQ(CountCategory(t, Category::kSchedule), 0u);
  EXPECT_EQ(DefectCountOf(t, Defect::kBadTime), 1u);
}

TEST(Nsys, SmallExport) {
  const Timeline t = ReadText(Database(kSmallExport));
  ASSERT_EQ(CountCategory(t, Category::kKernel), 1u);
  EXPECT_EQ(t.SliceName(0), "gemm");
  EXPECT_EQ(t.slices.dur_ns[0], 150);
  EXPECT_EQ(t.kernels[0].grid.x, 132u);
  EXPECT_EQ(t.kernels[0].cluster, 2u);
  EXPECT_TRUE(t.kernels[0].in_graph);
  EXPECT_EQ(t.SliceTrack(0).pid, 2);
  EXPECT_EQ(t.slices.correlation[0], (uint64_t{2} << 32) + 5);
  EXPECT_EQ(DefectCountOf(t, Defect::kBadTime), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kZeroTime), 1u);
  EXPECT_EQ(DefectCountOf(t, Defect::kUnmatchedBegin), 1u);

  const size_t graph = FindSlice(t, "CUDA graph 3");
  ASSERT_NE(graph, kNone);
  EXPECT_EQ(t.slices.category[graph], Category::kGraph);

  const size_t op = FindSlice(t, "aten::add");
  ASSERT_NE(op, kNone);
  EXPECT_EQ(t.Name(t.ops[t.slices.detail[op]].input_dims), "[[1,8],[]]");
  EXPECT_EQ(CountCategory(t, Category::kInstant), 1u);

  ASSERT_EQ(CountCategory(t, Category::kSchedule), 1u);
  const size_t off = FindSlice(t, "off CPU");
  EXPECT_EQ(t.slices.start_ns[off], 30);
  EXPECT_EQ(t.slices.dur_ns[off], 45);

  ASSERT_EQ(t.samples.size(), 2u);
  EXPECT_EQ(t.Name(t.series[0].name), "SM Active [Throughput %]");
  EXPECT_EQ(t.series[0].device, 2);
  EXPECT_EQ(t.samples.value[0], 88);
  EXPECT_EQ(t.Name(t.series[1].name), "IB: Bytes sent");
  EXPECT_EQ(t.series[1].device, 4);
  EXPECT_EQ(t.samples.t_ns[1], 600);
  EXPECT_EQ(t.strings.Find("SECRET=1"), 0u);
  EXPECT_EQ(t.strings.Find("SECRET=2"), 0u);
  EXPECT_EQ(CountCategory(t, Category::kRuntime), 0u);  // a view is no table
}

TEST(Nsys, OtherAndBrokenDatabasesAreErrors) {
  const auto read = [](std::string bytes) {
    Timeline timeline;
    Result<Input> input = Input::FromMemory("db", std::move(bytes));
    return ReadArtifact(*input, timeline);
  };
  const auto other = read(Database("CREATE TABLE t (a)"));
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("StringIds"), std::string::npos);
  const std::string good = Database(kSmallExport);
  EXPECT_FALSE(read(good.substr(0, 512)));
  std::string broken = good;
  std::fill(broken.begin() + 4096, broken.end(), '\xff');
  const auto damaged = read(broken);
  EXPECT_FALSE(damaged);
}

TEST(Nsys, TruncatedDatabaseKeepsWhatIsThere) {
  std::string bytes = Database(kSmallExport);
  // The last page holds one of the small tables.
  const Timeline whole = ReadText(bytes);
  for (size_t at = bytes.size() - 4096; at < bytes.size(); ++at) bytes[at] = '\x11';
  const Timeline t = ReadText(bytes);
  EXPECT_EQ(CountCategory(t, Category::kKernel), 1u);
  EXPECT_GE(whole.sources[0].stats.kept, t.sources[0].stats.kept);
}

TEST(Ncu, DetailsPage) {
  const Timeline t = ReadFile("ncu/nsightful_copy_blocked_details.csv");
  ASSERT_EQ(t.profiled_kernels.size(), 1u);
  const ProfiledKernel& kernel = t.profiled_kernels[0];
  EXPECT_EQ(kernel.num_metrics, 72u);
  EXPECT_EQ(kernel.num_advice, 11u);
  EXPECT_EQ(kernel.grid.x, 1024u);
  EXPECT_EQ(kernel.block.x, 256u);
  EXPECT_EQ(kernel.compute_major, 7);
  EXPECT_EQ(kernel.compute_minor, 5);
  EXPECT_DOUBLE_EQ(*t.Metric(kernel, "DRAM Frequency"), 4963609951.19);
  EXPECT_DOUBLE_EQ(*t.Metric(kernel, "Elapsed Cycles"), 12319469);
  EXPECT_DOUBLE_EQ(*t.Metric(kernel, "DRAM Throughput"), 61.84);
}

TEST(Ncu, RawPages) {
  const Timeline bank = ReadFile("ncu/ncu_bank_raw.csv.gz");
  ASSERT_EQ(bank.profiled_kernels.size(), 2u);
  EXPECT_EQ(bank.Name(bank.profiled_kernels[0].name),
            "void transpose<0>(const float *, float *, int)");
  const auto conflicts = [&](int i) {
    return *bank.Metric(bank.profiled_kernels[i],
                        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum");
  };
  EXPECT_GT(conflicts(0), 1.6e7);
  EXPECT_LT(conflicts(1), 5e4);
  EXPECT_DOUBLE_EQ(*bank.Metric(bank.profiled_kernels[0], "gpu__time_duration.sum"), 84416);
  const Timeline torch = ReadFile("ncu/ncu_torch_raw.csv.gz");
  EXPECT_EQ(torch.profiled_kernels.size(), 17u);
}

TEST(Ncu, LocaleOfTheNumbers) {
  const auto metric = [](std::string_view value, std::string_view other) {
    const std::string csv =
        "==PROF== banner\n\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel "
        "Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"a\",\"b\"\n"
        "\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"usecond\",\"Mbyte/s\"\n"
        "\"0\",\"1\",\"p\",\"h\",\"k\",\"1\",\"7\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"0\",\"9.0\",\"" +
        std::string(value) + "\",\"" + std::string(other) + "\"\n";
    const Timeline t = ReadText(csv);
    EXPECT_EQ(t.profiled_kernels.size(), 1u);
    return t.Metric(t.profiled_kernels[0], "a").value_or(-1);
  };
  EXPECT_DOUBLE_EQ(metric("1,234.5", "2"), 1234500);
  EXPECT_DOUBLE_EQ(metric("1.234,5", "2"), 1234500);
  EXPECT_DOUBLE_EQ(metric("65,77", "1"), 65770);
  EXPECT_DOUBLE_EQ(metric("2.508.800", "65,77"), 2508800e3);
  EXPECT_DOUBLE_EQ(metric("1,234", "0.5"), 1234e3);    // groups, since the file has decimal points
  EXPECT_DOUBLE_EQ(metric("1.234", "65,77"), 1234e3);  // groups, since the file has decimal commas
  EXPECT_DOUBLE_EQ(metric("n/a", "65,77"), -1);
}

TEST(Ncu, Units) {
  EXPECT_EQ(NormalizeUnit("Gbyte/second").base, "byte/s");
  EXPECT_DOUBLE_EQ(NormalizeUnit("Gbyte/second").factor, 1e9);
  EXPECT_DOUBLE_EQ(NormalizeUnit("Mbyte/s").factor, 1e6);
  EXPECT_EQ(NormalizeUnit("cycle/nsecond").base, "hz");
  EXPECT_DOUBLE_EQ(NormalizeUnit("cycle/nsecond").factor, 1e9);
  EXPECT_EQ(NormalizeUnit("Kbyte/block").base, "byte/block");
  EXPECT_EQ(NormalizeUnit("inst/cycle").base, "inst/cycle");
  EXPECT_DOUBLE_EQ(NormalizeUnit("msecond").factor, 1e6);
}

TEST(Ncu, QuotedQuotesAndBrokenRows) {
  const Timeline t = ReadText(
      "\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric "
      "Value\",\"Rule Name\",\"Rule Type\",\"Rule Description\",\"Estimated Speedup "
      "Type\",\"Estimated Speedup\"\n"
      "\"0\",\"f<\"\"a\"\", 1>\",\"S\",\"M\",\"%\",\"12.5\",\"R\",\"OPT\",\"two\nlines\",\"local\","
      "\"33.25\"\n"
      "\"0\",\"x\"\n");
  ASSERT_EQ(t.profiled_kernels.size(), 1u);
  EXPECT_EQ(t.Name(t.profiled_kernels[0].name), "f<\"a\", 1>");
  EXPECT_EQ(t.Name(t.kernel_advice[0].text), "two\nlines");
  EXPECT_DOUBLE_EQ(t.kernel_advice[0].estimated_speedup_pct, 33.25);
  EXPECT_EQ(DefectCountOf(t, Defect::kMalformed), 1u);
}

TEST(Perf, SamplesWithStacks) {
  const Timeline t = ReadFile("perf/local_python_cpu-clock.txt.gz");
  EXPECT_EQ(t.stack_samples.size(), 462u);
  const StackSample& sample = t.stack_samples[0];
  EXPECT_EQ(t.Name(sample.command), "python3");
  EXPECT_EQ(sample.tid, 520);
  EXPECT_EQ(sample.t_ns, 1077632971000);
  EXPECT_EQ(sample.period, 5025125u);
  EXPECT_EQ(t.Name(sample.event), "cpu-clock");
  const std::vector<StackNode> stack = t.Stack(sample.stack);
  ASSERT_EQ(stack.size(), 10u);
  EXPECT_EQ(t.Name(stack.front().symbol), "sized_strscpy");
  EXPECT_EQ(t.Name(stack.back().symbol), "__GI___execve");
  EXPECT_EQ(t.Name(stack.back().module), "/usr/lib/x86_64-linux-gnu/libc.so.6");
  EXPECT_EQ(t.sources[0].clock, ClockDomain::kMonotonic);
  EXPECT_EQ(t.sources[0].stats.dropped(), 0u);
}

TEST(Perf, BranchTrace) {
  const Timeline t = ReadFile("perf/dynolog_intel_pt_stress_ushort.txt");
  EXPECT_EQ(t.stack_samples.size(), 60u);
  EXPECT_EQ(t.Name(t.stack_samples[1].event), "call");
  EXPECT_EQ(t.stack_samples[1].cpu, 43);
  EXPECT_EQ(t.Name(t.Stack(t.stack_samples[1].stack)[0].symbol), "__libc_fork");
}

TEST(Perf, MemorySamples) {
  const Timeline t = ReadText(
      "Web Content   46572/46580 [002] 544966.882384:      10000   cpu/mem-loads,ldlat=30/P: "
      "7ffdf1391b0c     10268100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK    N/A"
      "    5   7    0   7fad7c47425d [unknown] (/usr/lib64/libglib-2.0.so)\n"
      "engine  10 [001] 5.5: 1 mem-loads: ffff 1a29081042 |OP LOAD|LVL Remote RAM (1 hop) hit|SNP "
      "None|TLB L1 hit|LCK No 420 7f00 memcpy+0x3 (libc.so)\n"
      "engine  10 [001] 5.6: 1 mem-stores: 10 1 |OP STORE|LVL Remote Cache (1 hop) hit|SNP "
      "HitM|TLB L1 hit|LCK No\n\t7f00 f+0x1 (a)\n\t7f01 g+0x1 (b)\n\n");
  ASSERT_EQ(t.stack_samples.size(), 3u);
  const StackSample& first = t.stack_samples[0];
  EXPECT_EQ(t.Name(first.command), "Web Content");
  EXPECT_EQ(first.pid, 46572);
  EXPECT_EQ(first.address, 0x7ffdf1391b0cu);
  EXPECT_EQ(first.level, MemoryLevel::kL1);
  EXPECT_EQ(first.latency_cycles, 5u);
  EXPECT_EQ(t.Name(t.Stack(first.stack)[0].symbol), "[unknown]");
  EXPECT_EQ(t.stack_samples[1].level, MemoryLevel::kRemoteRam);
  EXPECT_EQ(t.stack_samples[1].latency_cycles, 420u);
  EXPECT_EQ(t.Name(t.Stack(t.stack_samples[1].stack)[0].symbol), "memcpy");
  EXPECT_EQ(t.stack_samples[2].level, MemoryLevel::kRemoteCache);
  EXPECT_TRUE(t.stack_samples[2].store);
  EXPECT_TRUE(t.stack_samples[2].hit_modified);
  EXPECT_EQ(t.Stack(t.stack_samples[2].stack).size(), 2u);
}

TEST(Perf, C2cSummary) {
  const Timeline t = ReadText(
      "=================================================\n"
      "            Trace Event Information              \n"
      "=================================================\n"
      "  Total records                     :      64256\n"
      "  Load Operations                   :      31716\n"
      "  Load Remote DRAM                  :       3246\n"
      "  LLC Misses to Remote DRAM         :       12.5%\n"
      "  LLC Misses to Remote cache (HITM) :        0.0%\n");
  EXPECT_EQ(t.sources[0].format, "perf-c2c");
  const auto fact = [&](std::string_view key) {
    for (const Fact& entry : t.facts) {
      if (t.Name(entry.key) == key) return entry.number;
    }
    return -1.0;
  };
  EXPECT_EQ(fact("c2c.load_remote_dram"), 3246);
  EXPECT_EQ(fact("c2c.llc_misses_to_remote_dram"), 0.125);
  EXPECT_EQ(fact("c2c.llc_misses_to_remote_cache_hitm"), 0);
}

}  // namespace
}  // namespace fathom::diagnose
