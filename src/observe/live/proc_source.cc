#include "observe/live/proc_source.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/strings.h"
#include "observe/live/numa_topology.h"
#include "observe/live/proc_file.h"

namespace fathom::observe {

using event::Metric;

Status ProcSource::Open() {
  if (ReadProcFile(root_ + "/proc/stat").empty()) {
    return Err(Code::kUnsupported, "{}/proc/stat cannot be read: {}", root_, std::strerror(errno));
  }
  nodes_ = NumaTopology::Read(root_).nodes;
  if (pid_ != 0 && ReadProcFile(fmt::format("{}/proc/{}/stat", root_, pid_)).empty()) {
    return Err(Code::kNotFound, "process {} does not exist or cannot be read", pid_);
  }
  std::vector<event::Sample> first;
  Read(first);
  return {};
}

void ProcSource::Read(std::vector<event::Sample>& out) {
  ReadingScope scope(out);
  ReadCpu(scope);
  ReadMemory(scope);
  ReadNuma(scope);
  if (pid_ != 0) ReadProcess(scope);
}

void ProcSource::AddRate(ReadingScope& scope, Metric metric, double total, int device) {
  double per_second = 0;
  if (rates_[{metric, device}].Update(total, scope.start_ns(), &per_second)) {
    scope.Add(metric, per_second, device);
  }
}

void ProcSource::ReadCpu(ReadingScope& scope) {
  const std::string_view text = ReadProcFile(root_ + "/proc/stat");
  // cpu user nice system idle iowait irq softirq steal guest guest_nice
  std::array<double, 8> jiffies{};
  const std::vector<std::string_view> words = Split(text.substr(0, text.find('\n')), ' ');
  size_t field = 0;
  for (size_t i = 1; i < words.size() && field < jiffies.size(); ++i) {
    if (words[i].empty()) continue;
    std::from_chars(words[i].data(), words[i].data() + words[i].size(), jiffies[field++]);
  }
  double total = 0;
  for (const double j : jiffies) total += j;
  const double idle = jiffies[3];
  const double iowait = jiffies[4];
  const double steal = jiffies[7];
  // The counters tick at 100 Hz: between two ticks there is nothing to say.
  if (have_cpu_ && total <= cpu_total_) return;
  if (have_cpu_) {
    const double span = total - cpu_total_;
    scope.Add(Metric::kCpuBusy, 1 - (idle - cpu_idle_ + iowait - cpu_iowait_) / span);
    scope.Add(Metric::kCpuIoWait, (iowait - cpu_iowait_) / span);
    scope.Add(Metric::kCpuSteal, (steal - cpu_steal_) / span);
  }
  have_cpu_ = true;
  cpu_total_ = total;
  cpu_idle_ = idle;
  cpu_iowait_ = iowait;
  cpu_steal_ = steal;
  if (const auto n = NumberAfter(text, "procs_running")) scope.Add(Metric::kRunnableThreads, *n);
  if (const auto n = NumberAfter(text, "ctxt")) AddRate(scope, Metric::kContextSwitches, *n);
}

void ProcSource::ReadMemory(ReadingScope& scope) {
  const std::string_view text = ReadProcFile(root_ + "/proc/meminfo");
  if (const auto kb = NumberAfter(text, "MemAvailable:")) {
    scope.Add(Metric::kMemoryAvailable, *kb * 1024);
  }
}

void ProcSource::ReadNuma(ReadingScope& scope) {
  if (nodes_.size() < 2) return;  // one node has nothing remote
  for (const int node : nodes_) {
    const std::string_view text =
        ReadProcFile(fmt::format("{}/sys/devices/system/node/node{}/numastat", root_, node));
    if (const auto n = NumberAfter(text, "numa_hit")) {
      AddRate(scope, Metric::kNumaLocalPages, *n, node);
    }
    if (const auto n = NumberAfter(text, "numa_miss")) {
      AddRate(scope, Metric::kNumaRemotePages, *n, node);
    }
  }
  const std::string_view text = ReadProcFile(root_ + "/proc/vmstat");
  if (const auto n = NumberAfter(text, "numa_pages_migrated")) {
    AddRate(scope, Metric::kNumaMigratedPages, *n);
  }
  if (const auto n = NumberAfter(text, "numa_hint_faults")) {
    AddRate(scope, Metric::kNumaHintFaults, *n);
  }
}

void ProcSource::ReadProcess(ReadingScope& scope) {
  const ProcStat stat(ReadProcFile(fmt::format("{}/proc/{}/stat", root_, pid_)));
  if (!stat.valid()) return;
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
  AddRate(scope, Metric::kProcessCpu, (stat.field(14) + stat.field(15)) / ticks);
  AddRate(scope, Metric::kProcessMajorFaults, stat.field(12));
  scope.Add(Metric::kProcessResident, stat.field(24) * page);
  const std::string_view status = ReadProcFile(fmt::format("{}/proc/{}/status", root_, pid_));
  if (const auto n = NumberAfter(status, "voluntary_ctxt_switches:")) {
    AddRate(scope, Metric::kProcessVoluntarySwitches, *n);
  }
  if (const auto n = NumberAfter(status, "nonvoluntary_ctxt_switches:")) {
    AddRate(scope, Metric::kProcessInvoluntarySwitches, *n);
  }
}

}  // namespace fathom::observe
