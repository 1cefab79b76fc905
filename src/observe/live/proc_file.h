#pragma once
// Reading files of /proc and /sys.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::observe {

// These files are made as they are read, so one read sees one moment. Empty when unreadable; holds
// until this thread's next call.
std::string_view ReadProcFile(const std::string& path);

// The number after `key` at the start of a line ("ctxt 123", "MemAvailable:   123 kB").
std::optional<double> NumberAfter(std::string_view text, std::string_view key);

// /proc/PID/stat or /proc/PID/task/TID/stat, numbered as in proc_pid_stat(5).
class ProcStat {
 public:
  explicit ProcStat(std::string_view text);
  bool valid() const { return !fields_.empty(); }  // false: the process has ended
  double field(size_t number) const;               // from 4 on; 0 when absent

 private:
  std::vector<std::string_view> fields_;  // from field 3 on
};

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}; what is no such list gives nothing.
std::vector<int> ParseIdList(std::string_view text);

}  // namespace fathom::observe
