#pragma once
// Linux's own counters: /proc/stat, /proc/meminfo, /proc/vmstat, /sys/devices/system/node, and for
// a watched process /proc/PID/{stat,status}.
#include <map>
#include <string>

#include "observe/live/source.h"

namespace fathom::observe {

class ProcSource final : public Source {
 public:
  // pid 0: no process. `root` is put in front of /proc and /sys (tests).
  explicit ProcSource(int pid, std::string root = "") : pid_(pid), root_(std::move(root)) {}

  std::string_view name() const override { return "proc"; }
  Status Open() override;
  void Read(std::vector<event::Sample>& out) override;

 private:
  void ReadCpu(ReadingScope& scope);
  void ReadMemory(ReadingScope& scope);
  void ReadNuma(ReadingScope& scope);
  void ReadProcess(ReadingScope& scope);
  void AddRate(ReadingScope& scope, event::Metric metric, double total, int device = 0);

  int pid_;
  std::string root_;
  double cpu_total_ = 0, cpu_idle_ = 0, cpu_iowait_ = 0, cpu_steal_ = 0;
  bool have_cpu_ = false;
  std::map<std::pair<event::Metric, int>, Rate> rates_;
  std::vector<int> nodes_;
};

}  // namespace fathom::observe
