#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "observe/live/nvml_source.h"
#include "observe/live/perf_source.h"
#include "observe/live/proc_file.h"
#include "observe/live/proc_source.h"
#include "observe/live/sampler.h"
#include "observe/live/thread_source.h"

namespace fathom::observe {
namespace {

using event::Metric;

std::map<std::pair<Metric, int>, double> ByMetric(const std::vector<event::Sample>& samples) {
  std::map<std::pair<Metric, int>, double> values;
  for (const event::Sample& s : samples) values[{s.metric, s.device}] = s.value;
  return values;
}

TEST(Metric, NamesAreUniqueAndRoundTrip) {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Metric::kCount); ++i) {
    const auto metric = static_cast<Metric>(i);
    EXPECT_TRUE(names.insert(NameOf(metric)).second);
    EXPECT_EQ(event::MetricFromName(NameOf(metric)), metric);
    EXPECT_FALSE(UnitOf(metric).empty());
  }
  EXPECT_FALSE(event::MetricFromName("gpu_speed"));
}

TEST(Rate, NeedsTwoReadingsAndSurvivesRestarts) {
  Rate rate;
  double value = -1;
  EXPECT_FALSE(rate.Update(100, 1'000'000'000, &value));
  EXPECT_TRUE(rate.Update(150, 1'500'000'000, &value));
  EXPECT_DOUBLE_EQ(value, 100);
  EXPECT_FALSE(rate.Update(10, 2'000'000'000, &value));  // the counter went back
  EXPECT_TRUE(rate.Update(20, 3'000'000'000, &value));
  EXPECT_DOUBLE_EQ(value, 10);
}

class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/fathom_live_" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root_;
};

TEST_F(FakeMachine, ProcReadingsAreExact) {
  const auto write = [&](int busy, int idle, int remote) {
    Write("/proc/stat",
          fmt::format("cpu  {} 0 0 {} 10 0 0 5 0 0\ncpu0 1 1\nctxt {}\nprocs_running 3\n", busy,
                      idle, busy * 10));
    Write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:      2048 kB\n");
    Write("/proc/vmstat", fmt::format("numa_hint_faults {}\nnuma_pages_migrated 0\n", remote));
    Write("/sys/devices/system/node/online", "0-1\n");
    Write("/sys/devices/system/node/node0/numastat", "numa_hit 10\nnuma_miss 0\n");
    Write("/sys/devices/system/node/node1/numastat",
          fmt::format("numa_hit 10\nnuma_miss {}\n", remote));
    // A command with spaces and a ')' in it; utime = field 14, resident pages = field 24.
    Write("/proc/77/stat",
          fmt::format("77 (a ) b) S 1 2 3 4 5 6 7 8 {} 10 {} 0 16 17 18 19 20 21 22 "
                      "23 100\n",
                      0, busy));
    Write("/proc/77/status",
          "Name: x\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n");
  };
  write(100, 100, 0);
  ProcSource source(77, root_);
  ASSERT_TRUE(source.Open());
  write(175, 125, 50);
  std::vector<event::Sample> samples;
  source.Read(samples);
  auto values = ByMetric(samples);
  EXPECT_DOUBLE_EQ((values[{Metric::kCpuBusy, 0}]), 0.75);
  EXPECT_DOUBLE_EQ((values[{Metric::kCpuSteal, 0}]), 0);
  EXPECT_DOUBLE_EQ((values[{Metric::kRunnableThreads, 0}]), 3);
  EXPECT_DOUBLE_EQ((values[{Metric::kMemoryAvailable, 0}]), 2048 * 1024);
  EXPECT_GT((values[{Metric::kNumaRemotePages, 1}]), 0);
  EXPECT_DOUBLE_EQ((values[{Metric::kNumaRemotePages, 0}]), 0);
  EXPECT_GT((values[{Metric::kNumaHintFaults, 0}]), 0);
  EXPECT_GT((values[{Metric::kProcessCpu, 0}]), 0);
  EXPECT_DOUBLE_EQ((values[{Metric::kProcessInvoluntarySwitches, 0}]), 0);
  EXPECT_DOUBLE_EQ((values[{Metric::kProcessResident, 0}]),
                   100.0 * static_cast<double>(sysconf(_SC_PAGESIZE)));
  for (const event::Sample& s : samples) {
    EXPECT_GT(s.t_ns, 0);
    EXPECT_GE(s.half_width_ns, 0);
  }
}

TEST_F(FakeMachine, AMissingProcessIsAnError) {
  Write("/proc/stat", "cpu 1 0 0 1 0 0 0 0\n");
  EXPECT_EQ(ProcSource(4242, root_).Open().error().code, Code::kNotFound);
  EXPECT_FALSE(ProcSource(0, root_ + "/nowhere").Open());
}

TEST_F(FakeMachine, APartlyReadableMachineGivesWhatItHas) {
  Write("/proc/stat", "cpu garbage\n");
  ProcSource source(0, root_);
  ASSERT_TRUE(source.Open());
  std::vector<event::Sample> samples;
  source.Read(samples);
  EXPECT_TRUE(samples.empty());
}

TEST(IdList, IsExactOrEmpty) {
  EXPECT_EQ(ParseIdList("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseIdList("7"), std::vector<int>{7});
  for (const char* broken : {"", "\n", "a", "1-", "-1", "1-x", "1,", "0-99999999", "3 4"}) {
    EXPECT_TRUE(ParseIdList(broken).empty()) << broken;
  }
}

int64_t g_now_ns = 1;

// Two nodes with two CPUs each; GPU 0 is on node 0, GPU 1 on node 1.
class FakeNodes : public FakeMachine {
 protected:
  using Lists = std::vector<std::optional<std::vector<int>>>;  // processes, by GPU

  void SetUp() override {
    FakeMachine::SetUp();
    Write("/sys/devices/system/node/online", "0-1\n");
    Write("/sys/devices/system/node/node0/cpulist", "0-1\n");
    Write("/sys/devices/system/node/node1/cpulist", "2,3\n");
    UseNamespace("pid:[4026531836]");
  }
  void UseNamespace(const std::string& inode) {
    const std::filesystem::path link = root_ + "/proc/self/ns/pid";
    std::filesystem::create_directories(link.parent_path());
    std::filesystem::remove(link);
    std::filesystem::create_symlink(inode, link);
  }
  // Field 4 is the parent, 14 the CPU time, 39 the CPU. A command may hold what it likes.
  static std::string Stat(int id, int parent, int ticks, int cpu) {
    std::string text = fmt::format("{} (a) 5 (b) R {}", id, parent);
    for (int field = 5; field <= 52; ++field) {
      text += fmt::format(" {}", field == 14 ? ticks : field == 39 ? cpu : 0);
    }
    return text + "\n";
  }
  void SetThread(int pid, int tid, int ticks, int cpu, int parent = 1) {
    Write(fmt::format("/proc/{}/stat", pid), Stat(pid, parent, ticks, cpu));
    Write(fmt::format("/proc/{}/task/{}/stat", pid, tid), Stat(tid, parent, ticks, cpu));
  }
  ThreadSource Source(Lists lists, int pid = 0, std::vector<int> nodes = {0, 1}) const {
    return ThreadSource(
        {.node_of_gpu = std::move(nodes),
         .list_processes = [lists](int gpu) { return lists[static_cast<size_t>(gpu)]; },
         .pid = pid,
         .root = root_,
         .now_ns = [] { return g_now_ns; }});
  }
  static std::map<std::pair<Metric, int>, double> ReadOnce(ThreadSource& source) {
    std::vector<event::Sample> samples;
    source.Read(samples);
    return ByMetric(samples);
  }
  using Values = std::map<std::pair<Metric, int>, double>;
  static constexpr Metric kNear = Metric::kGpuThreadsNear;
  static constexpr Metric kFar = Metric::kGpuThreadsFar;
};

TEST_F(FakeNodes, TopologyIsRead) {
  const NumaTopology topology = NumaTopology::Read(root_);
  EXPECT_EQ(topology.nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(topology.num_cpu_nodes(), 2);
  EXPECT_EQ(topology.node_of_cpu.at(3), 1);
  EXPECT_EQ(NumaTopology::Read(root_ + "/nowhere").num_cpu_nodes(), 0);
}

TEST_F(FakeNodes, ThreadsThatWorkedAreCountedByNode) {
  SetThread(77, 77, 10, 0);
  SetThread(77, 78, 10, 3);
  SetThread(77, 79, 10, 3);
  SetThread(88, 88, 10, 0);
  ThreadSource source = Source({std::vector{77}, std::vector{88}});
  ASSERT_TRUE(source.Open());
  EXPECT_TRUE(source.listed());
  // Nothing used CPU time since.
  EXPECT_EQ(ReadOnce(source),
            (Values{{{kNear, 0}, 0}, {{kFar, 0}, 0}, {{kNear, 1}, 0}, {{kFar, 1}, 0}}));
  SetThread(77, 77, 12, 1);   // on node 0, as its GPU
  SetThread(77, 78, 11, 2);   // on node 1
  SetThread(77, 80, 50, 3);   // new: what it used since is not known
  SetThread(88, 88, 11, 99);  // on a CPU that no node has
  EXPECT_EQ(ReadOnce(source),
            (Values{{{kNear, 0}, 1}, {{kFar, 0}, 1}, {{kNear, 1}, 0}, {{kFar, 1}, 0}}));
  std::filesystem::remove_all(root_ + "/proc/77");  // it ended
  SetThread(77, 77, 12, 50);
  SetThread(77, 78, 11, 60);  // a new one under an old number: what it used before is not known
  EXPECT_EQ(ReadOnce(source),
            (Values{{{kNear, 0}, 0}, {{kFar, 0}, 0}, {{kNear, 1}, 0}, {{kFar, 1}, 0}}));
}

// A thread that rests is looked at again, and one that ends is forgotten.
TEST_F(FakeNodes, ThreadsComeAndGo) {
  SetThread(77, 77, 10, 0);
  SetThread(77, 78, 10, 0);
  ThreadSource source = Source({std::vector{77}, std::vector<int>{}});
  ASSERT_TRUE(source.Open());
  const auto near = [&](int64_t after_ms) {
    g_now_ns += after_ms * 1'000'000;
    return ReadOnce(source)[{kNear, 0}];
  };
  EXPECT_EQ(near(1000), 0);  // both rest from here on
  SetThread(77, 77, 11, 0);
  SetThread(77, 79, 10, 0);  // new
  EXPECT_EQ(near(50), 0);
  EXPECT_EQ(near(950), 1);  // what the first one did meanwhile
  SetThread(77, 77, 12, 0);
  SetThread(77, 79, 12, 0);
  std::filesystem::remove_all(root_ + "/proc/77/task/78");
  EXPECT_EQ(near(50), 2);
  EXPECT_EQ(near(1000), 0);
  SetThread(77, 78, 20, 0);  // another one by that number
  EXPECT_EQ(near(1000), 0);
  SetThread(77, 78, 21, 0);
  EXPECT_EQ(near(50), 1);
}

TEST_F(FakeNodes, AProcessBetweenNodesOrOnAnUnknownOneIsLeftOut) {
  SetThread(77, 77, 10, 0);
  ThreadSource both = Source({std::vector{77}, std::vector{77}});
  ThreadSource unknown = Source({std::vector{77}, std::vector<int>{}}, 0, {-1, 1});
  ASSERT_TRUE(both.Open());
  ASSERT_TRUE(unknown.Open());
  SetThread(77, 77, 12, 0);
  EXPECT_TRUE(ReadOnce(both).empty());
  EXPECT_TRUE(ReadOnce(unknown).empty());
}

TEST_F(FakeNodes, APidKeepsItsDescendants) {
  SetThread(70, 70, 10, 0);  // the watched one uses no GPU itself
  SetThread(77, 77, 10, 2, /*parent=*/70);
  SetThread(88, 88, 10, 0, /*parent=*/1);
  ThreadSource source = Source({std::vector{77}, std::vector{88}}, 70);
  ASSERT_TRUE(source.Open());
  SetThread(70, 70, 20, 0);
  SetThread(77, 77, 20, 2, 70);
  SetThread(88, 88, 20, 0, 1);
  EXPECT_EQ(ReadOnce(source), (Values{{{kNear, 0}, 0}, {{kFar, 0}, 1}}));
}

TEST_F(FakeNodes, InAContainerThePidAloneCounts) {
  UseNamespace("pid:[4026532000]");
  SetThread(77, 77, 10, 2);
  SetThread(88, 88, 10, 2);  // whatever the host's process 88 is, it is not this one
  ThreadSource nobody = Source({std::vector{88}, std::vector<int>{}});
  EXPECT_FALSE(nobody.listed());
  EXPECT_NE(nobody.Open().error().message.find("expected --pid"), std::string::npos);
  ThreadSource source = Source({std::vector{88}, std::vector<int>{}}, 77, {0, 0});
  ASSERT_TRUE(source.Open());
  SetThread(77, 77, 20, 2);
  SetThread(88, 88, 20, 2);
  EXPECT_EQ(ReadOnce(source),
            (Values{{{kNear, 0}, 0}, {{kFar, 0}, 1}, {{kNear, 1}, 0}, {{kFar, 1}, 1}}));
  // A driver that lists nothing is the same.
  UseNamespace("pid:[4026531836]");
  EXPECT_FALSE(Source({std::nullopt, std::nullopt}, 77).listed());
}

TEST_F(FakeMachine, TheDriverSaysWhereTheGpuIsAndWhoUsesIt) {
  Write("/sys/bus/pci/devices/0000:1a:00.0/numa_node", "1\n");
  const auto nvml = Nvml::Load(FAKE_NVML, root_);
  ASSERT_TRUE(nvml) << nvml.error().message;
  EXPECT_EQ((*nvml)->gpus()[0].numa_node, 1);
  EXPECT_EQ((*nvml)->ComputeProcesses(0), (std::vector<int>{77, 78}));
}

TEST(Nvml, ReadsTheGpu) {
  const auto nvml = Nvml::Load(FAKE_NVML, "/nowhere");
  ASSERT_TRUE(nvml) << nvml.error().message;
  ASSERT_EQ((*nvml)->gpus().size(), 1u);
  EXPECT_EQ((*nvml)->gpus()[0].numa_node, -1);
  EXPECT_EQ((*nvml)->gpus()[0].name, "Fake GPU");
  EXPECT_NEAR((*nvml)->gpus()[0].pcie_bytes_per_second, 63e9, 1e9);
  NvmlSource source(*nvml);
  ASSERT_TRUE(source.Open());
  std::vector<event::Sample> samples;
  source.Read(samples);
  NvmlPcieSource pcie(*nvml);
  pcie.Read(samples);
  auto values = ByMetric(samples);
  EXPECT_DOUBLE_EQ((values[{Metric::kGpuBusy, 0}]), 0.42);
  EXPECT_DOUBLE_EQ((values[{Metric::kGpuMemoryBusy, 0}]), 0.89);
  EXPECT_DOUBLE_EQ((values[{Metric::kGpuSmClock, 0}]), 1980);
  EXPECT_DOUBLE_EQ((values[{Metric::kGpuMemoryClock, 0}]), 3201);
  EXPECT_DOUBLE_EQ((values[{Metric::kGpuPower, 0}]), 650.5);
  EXPECT_DOUBLE_EQ((values[{Metric::kPcieTx, 0}]), 1000 * 1024);
  EXPECT_DOUBLE_EQ((values[{Metric::kPcieRx, 0}]), 2000 * 1024);
  EXPECT_GT((values[{Metric::kNvlinkTx, 0}]), 0);
}

TEST(Nvml, AbsenceIsAClearError) {
  const auto nvml = Nvml::Load("libno-such-nvml.so.1");
  ASSERT_FALSE(nvml);
  EXPECT_NE(nvml.error().message.find("no NVIDIA driver"), std::string::npos);
  const auto other = Nvml::Load("libm.so.6");  // a library without the symbols
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("nvmlInit_v2"), std::string::npos);
}

class CountingSource final : public Source {
 public:
  explicit CountingSource(bool works) : works_(works) {}
  std::string_view name() const override { return "counting"; }
  Status Open() override {
    if (works_) return {};
    return Err(Code::kUnsupported, "not today");
  }
  void Read(std::vector<event::Sample>& out) override {
    ReadingScope scope(out);
    scope.Add(Metric::kCpuBusy, count_++);
  }

 private:
  bool works_;
  double count_ = 0;
};

TEST(Sampler, KeepsTheNewestInOrderAndSaysWhatIsMissing) {
  Sampler sampler({.period_ms = 1, .capacity = 8});
  sampler.Add(std::make_unique<CountingSource>(true));
  sampler.Add(std::make_unique<CountingSource>(false));
  ASSERT_EQ(sampler.skipped().size(), 1u);
  EXPECT_EQ(sampler.skipped()[0].why, "not today");
  sampler.Start();
  uint64_t cursor = 0;
  while (sampler.lost() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  sampler.Stop();
  const auto samples = sampler.Since(&cursor);
  ASSERT_EQ(samples.size(), 8u);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].value, samples[i - 1].value + 1);
    EXPECT_GE(samples[i].t_ns, samples[i - 1].t_ns);
  }
  EXPECT_TRUE(sampler.Since(&cursor).empty());
  EXPECT_GE(sampler.alignment_error_ns(), 1'000'000);
}

TEST(Perf, IsReadOrExplained) {
  PerfSource source(static_cast<int>(getpid()));
  if (const Status status = source.Open(); !status) {
    EXPECT_NE(status.error().message.find("hardware counters"), std::string::npos);
    return;
  }
  std::vector<event::Sample> samples;
  source.Read(samples);
  volatile int work = 0;
  for (int i = 0; i < 100000; ++i) work = work + i;
  source.Read(samples);
  EXPECT_GT((ByMetric(samples)[{Metric::kProcessInstructions, 0}]), 0);
}

}  // namespace
}  // namespace fathom::observe
