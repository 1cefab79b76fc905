#include "observe/live/thread_source.h"

#include <charconv>
#include <filesystem>

#include "observe/live/proc_file.h"

namespace fathom::observe {
namespace {

using event::Metric;

// Processes come and go: the list is asked for again after this time.
constexpr int64_t kListPeriodNs = 1'000'000'000;
// Of the kernel's own process namespace (PROC_PID_INIT_INO in linux/proc_ns.h): the one whose ids
// the driver lists.
constexpr std::string_view kHostNamespace = "pid:[4026531836]";
// Deeper than any tree of processes: a broken /proc must not turn into a loop.
constexpr int kMostAncestors = 64;

}  // namespace

ThreadSource::ThreadSource(ThreadSourceOptions options)
    : options_(std::move(options)), topology_(NumaTopology::Read(options_.root)) {
  std::error_code error;
  const auto here = std::filesystem::read_symlink(options_.root + "/proc/self/ns/pid", error);
  if (error || here.string() != kHostNamespace) return;
  for (size_t gpu = 0; gpu < options_.node_of_gpu.size() && !listed_; ++gpu) {
    listed_ = options_.list_processes(static_cast<int>(gpu)).has_value();
  }
}

Status ThreadSource::Open() {
  if (!listed_ && options_.pid == 0) {
    return Err(Code::kUnsupported,
               "the driver does not tell here which processes use a GPU: expected --pid, the "
               "process that launches the kernels");
  }
  std::vector<event::Sample> first;
  Read(first);
  return {};
}

void ThreadSource::Read(std::vector<event::Sample>& out) {
  ReadingScope scope(out);
  if (found_ns_ == 0 || scope.start_ns() - found_ns_ >= kListPeriodNs) {
    FindProcesses();
    found_ns_ = scope.start_ns();
  }
  std::map<int, std::pair<int, int>> by_gpu;  // threads near and far
  std::map<ThreadId, double> ticks;
  for (const GpuProcess& process : processes_) {
    const std::optional<int> node = NodeOf(process);
    if (!node) continue;
    int near = 0;
    int far = 0;
    CountThreads(process, *node, ticks, &near, &far);
    for (const int gpu : process.gpus) {
      by_gpu[gpu].first += near;
      by_gpu[gpu].second += far;
    }
  }
  ticks_ = std::move(ticks);
  for (const auto& [gpu, threads] : by_gpu) {
    scope.Add(Metric::kGpuThreadsNear, threads.first, gpu);
    scope.Add(Metric::kGpuThreadsFar, threads.second, gpu);
  }
}

void ThreadSource::FindProcesses() {
  std::map<int, std::vector<int>> gpus_of;  // process -> GPUs
  for (size_t i = 0; i < options_.node_of_gpu.size(); ++i) {
    const int gpu = static_cast<int>(i);
    if (!listed_) {
      gpus_of[options_.pid].push_back(gpu);
      continue;
    }
    const std::optional<std::vector<int>> pids = options_.list_processes(gpu);
    if (!pids) continue;
    for (const int pid : *pids) {
      if (IsWatched(pid)) gpus_of[pid].push_back(gpu);
    }
  }
  processes_.clear();
  for (auto& [pid, gpus] : gpus_of) processes_.push_back({pid, std::move(gpus)});
}

bool ThreadSource::IsWatched(int pid) const {
  if (options_.pid == 0) return true;
  for (int i = 0; i < kMostAncestors && pid > 0; ++i) {
    if (pid == options_.pid) return true;
    const ProcStat stat(ReadProcFile(fmt::format("{}/proc/{}/stat", options_.root, pid)));
    if (!stat.valid()) return false;
    pid = static_cast<int>(stat.field(4));
  }
  return false;
}

std::optional<int> ThreadSource::NodeOf(const GpuProcess& process) const {
  std::optional<int> node;
  for (const int gpu : process.gpus) {
    const int of_gpu = options_.node_of_gpu[static_cast<size_t>(gpu)];
    if (of_gpu < 0 || (node && *node != of_gpu)) return std::nullopt;
    node = of_gpu;
  }
  return node;
}

void ThreadSource::CountThreads(const GpuProcess& process, int node,
                                std::map<ThreadId, double>& ticks, int* near, int* far) const {
  const std::string folder = fmt::format("{}/proc/{}/task", options_.root, process.pid);
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  // A process that ends meanwhile ends the list.
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    int tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    const ProcStat stat(ReadProcFile(it->path() / "stat"));
    if (!stat.valid()) continue;
    const double now = stat.field(14) + stat.field(15);
    ticks[{process.pid, tid}] = now;
    const auto before = ticks_.find({process.pid, tid});
    if (before == ticks_.end() || now <= before->second) continue;
    const auto cpu = topology_.node_of_cpu.find(static_cast<int>(stat.field(39)));
    if (cpu == topology_.node_of_cpu.end()) continue;
    ++(cpu->second == node ? *near : *far);
  }
}

}  // namespace fathom::observe
