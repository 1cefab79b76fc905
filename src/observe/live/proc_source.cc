#include "observe/live/proc_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/strings.h"

namespace fathom::observe {
namespace {

using event::Metric;

// These files are made as they are read, so one read() sees one moment. Empty when unreadable.
std::string_view Slurp(const std::string& path, std::array<char, 1 << 16>& buffer) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t n = read(fd, buffer.data() + size, buffer.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  close(fd);
  return {buffer.data(), size};
}

// The number after `key` at the start of a line ("ctxt 123", "MemAvailable:   123 kB").
std::optional<double> NumberAfter(std::string_view text, std::string_view key) {
  size_t at = 0;
  while ((at = text.find(key, at)) != std::string_view::npos) {
    const bool line_start = at == 0 || text[at - 1] == '\n';
    at += key.size();
    if (!line_start || at >= text.size() || (text[at] != ' ' && text[at] != '\t')) continue;
    at = text.find_first_not_of(" \t", at);
    if (at == std::string_view::npos) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    if (error == std::errc()) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

thread_local std::array<char, 1 << 16> t_buffer;

}  // namespace

Status ProcSource::Open() {
  if (Slurp(root_ + "/proc/stat", t_buffer).empty()) {
    return Err(Code::kUnsupported, "{}/proc/stat cannot be read: {}", root_, std::strerror(errno));
  }
  std::error_code ignored;
  for (int node = 0; node < 1024; ++node) {
    const std::string folder = fmt::format("{}/sys/devices/system/node/node{}", root_, node);
    if (!std::filesystem::exists(folder, ignored)) break;
    nodes_.push_back(node);
  }
  if (pid_ != 0 && Slurp(fmt::format("{}/proc/{}/stat", root_, pid_), t_buffer).empty()) {
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
  const std::string_view text = Slurp(root_ + "/proc/stat", t_buffer);
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
  const std::string_view text = Slurp(root_ + "/proc/meminfo", t_buffer);
  if (const auto kb = NumberAfter(text, "MemAvailable:")) {
    scope.Add(Metric::kMemoryAvailable, *kb * 1024);
  }
}

void ProcSource::ReadNuma(ReadingScope& scope) {
  if (nodes_.size() < 2) return;  // one node has nothing remote
  for (const int node : nodes_) {
    const std::string_view text =
        Slurp(fmt::format("{}/sys/devices/system/node/node{}/numastat", root_, node), t_buffer);
    if (const auto n = NumberAfter(text, "numa_hit")) {
      AddRate(scope, Metric::kNumaLocalPages, *n, node);
    }
    if (const auto n = NumberAfter(text, "numa_miss")) {
      AddRate(scope, Metric::kNumaRemotePages, *n, node);
    }
  }
  const std::string_view text = Slurp(root_ + "/proc/vmstat", t_buffer);
  if (const auto n = NumberAfter(text, "numa_pages_migrated")) {
    AddRate(scope, Metric::kNumaMigratedPages, *n);
  }
  if (const auto n = NumberAfter(text, "numa_hint_faults")) {
    AddRate(scope, Metric::kNumaHintFaults, *n);
  }
}

void ProcSource::ReadProcess(ReadingScope& scope) {
  const std::string_view stat = Slurp(fmt::format("{}/proc/{}/stat", root_, pid_), t_buffer);
  // The command is in parentheses and may hold spaces: fields are counted from the last ')'.
  const size_t close = stat.rfind(')');
  if (close == std::string_view::npos || close + 2 > stat.size()) return;  // it has ended
  const std::vector<std::string_view> fields = Split(stat.substr(close + 2), ' ');
  const auto field = [&](size_t number) {  // numbered as in proc(5); state is field 3
    double value = 0;
    if (number - 3 < fields.size()) {
      const std::string_view word = fields[number - 3];
      std::from_chars(word.data(), word.data() + word.size(), value);
    }
    return value;
  };
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
  AddRate(scope, Metric::kProcessCpu, (field(14) + field(15)) / ticks);
  AddRate(scope, Metric::kProcessMajorFaults, field(12));
  scope.Add(Metric::kProcessResident, field(24) * page);
  const std::string_view status = Slurp(fmt::format("{}/proc/{}/status", root_, pid_), t_buffer);
  if (const auto n = NumberAfter(status, "voluntary_ctxt_switches:")) {
    AddRate(scope, Metric::kProcessVoluntarySwitches, *n);
  }
  if (const auto n = NumberAfter(status, "nonvoluntary_ctxt_switches:")) {
    AddRate(scope, Metric::kProcessInvoluntarySwitches, *n);
  }
}

}  // namespace fathom::observe
