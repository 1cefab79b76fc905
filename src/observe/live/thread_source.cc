#include "observe/live/thread_source.h"

#include <charconv>
#include <filesystem>
#include <iterator>

#include "observe/live/proc_file.h"

namespace fathom::observe {
namespace {

using event::Metric;

// Processes and threads come and go: they are looked for again after this time, and those that have
// not worked for as long are read only then.
constexpr int64_t kRestNs = 1'000'000'000;
constexpr double kNotRead = -1;
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
  const int64_t now_ns = options_.now_ns();
  const bool all = found_ns_ == 0 || now_ns - found_ns_ >= kRestNs;
  if (all) {
    FindProcesses();
    for (const GpuProcess& process : processes_) FindThreads(process, now_ns);
    found_ns_ = now_ns;
  }
  std::map<int, Counts> by_process;
  for (auto it = threads_.begin(); it != threads_.end();) {
    const auto node = node_of_.find(it->first.first);
    const bool watched = node != node_of_.end();
    const bool due = all || now_ns - it->second.worked_ns < kRestNs;
    const bool ended = !watched || (due && !ReadThread(it->first, it->second, node->second, now_ns,
                                                       by_process[it->first.first]));
    it = ended ? threads_.erase(it) : std::next(it);
  }
  std::map<int, Counts> by_gpu;
  for (const GpuProcess& process : processes_) {
    if (!node_of_.contains(process.pid)) continue;
    for (const int gpu : process.gpus) {
      by_gpu[gpu].near += by_process[process.pid].near;
      by_gpu[gpu].far += by_process[process.pid].far;
    }
  }
  for (const auto& [gpu, counts] : by_gpu) {
    scope.Add(Metric::kGpuThreadsNear, counts.near, gpu);
    scope.Add(Metric::kGpuThreadsFar, counts.far, gpu);
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
  node_of_.clear();
  for (auto& [pid, gpus] : gpus_of) {
    processes_.push_back({pid, std::move(gpus)});
    if (const auto node = NodeOf(processes_.back())) node_of_[pid] = *node;
  }
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

void ThreadSource::FindThreads(const GpuProcess& process, int64_t now_ns) {
  const std::string folder = fmt::format("{}/proc/{}/task", options_.root, process.pid);
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  // A process that ends meanwhile ends the list.
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    int tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    threads_.try_emplace({process.pid, tid}, Thread{kNotRead, now_ns});
  }
}

bool ThreadSource::ReadThread(const ThreadId& id, Thread& thread, int node, int64_t now_ns,
                              Counts& counts) const {
  const ProcStat stat(
      ReadProcFile(fmt::format("{}/proc/{}/task/{}/stat", options_.root, id.first, id.second)));
  if (!stat.valid()) return false;
  const double before = thread.ticks;
  thread.ticks = stat.field(14) + stat.field(15);
  if (before == kNotRead || thread.ticks <= before) return true;
  thread.worked_ns = now_ns;
  const auto cpu = topology_.node_of_cpu.find(static_cast<int>(stat.field(39)));
  if (cpu != topology_.node_of_cpu.end()) ++(cpu->second == node ? counts.near : counts.far);
  return true;
}

}  // namespace fathom::observe
