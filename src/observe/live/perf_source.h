#pragma once
// Hardware counters of the watched process, where the kernel allows it (perf_event_open(2);
// /proc/sys/kernel/perf_event_paranoid, and a CPU that shows its counters to this machine).
#include <array>

#include "observe/live/source.h"

namespace fathom::observe {

class PerfSource final : public Source {
 public:
  explicit PerfSource(int pid) : pid_(pid) { fds_.fill(-1); }
  ~PerfSource() override;
  std::string_view name() const override { return "perf"; }
  Status Open() override;
  void Read(std::vector<event::Sample>& out) override;

 private:
  static constexpr size_t kCounters = 3;
  int pid_;
  std::array<int, kCounters> fds_;
  std::array<Rate, kCounters> rates_;
};

}  // namespace fathom::observe
