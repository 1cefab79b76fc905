#include "observe/live/perf_source.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fathom::observe {
namespace {

struct Counter {
  uint64_t config;
  event::Metric metric;
};
constexpr std::array<Counter, 3> kCounterList = {{
    {PERF_COUNT_HW_INSTRUCTIONS, event::Metric::kProcessInstructions},
    {PERF_COUNT_HW_CPU_CYCLES, event::Metric::kProcessCycles},
    {PERF_COUNT_HW_CACHE_MISSES, event::Metric::kProcessCacheMisses},
}};

}  // namespace

PerfSource::~PerfSource() {
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

Status PerfSource::Open() {
  for (size_t i = 0; i < kCounters; ++i) {
    perf_event_attr attr{};
    attr.size = sizeof(attr);
    attr.type = PERF_TYPE_HARDWARE;
    attr.config = kCounterList[i].config;
    attr.inherit = 1;  // threads that it starts from here on
    attr.exclude_kernel = 1;
    fds_[i] =
        static_cast<int>(syscall(SYS_perf_event_open, &attr, pid_, -1, -1, PERF_FLAG_FD_CLOEXEC));
    if (fds_[i] < 0) {
      return Err(Code::kUnsupported, "hardware counters of process {} are not available: {}{}",
                 pid_, std::strerror(errno),
                 errno == EACCES || errno == EPERM ? " (see kernel.perf_event_paranoid)" : "");
    }
  }
  return {};
}

void PerfSource::Read(std::vector<event::Sample>& out) {
  ReadingScope scope(out);
  for (size_t i = 0; i < kCounters; ++i) {
    uint64_t total = 0;
    double per_second = 0;
    if (read(fds_[i], &total, sizeof(total)) == sizeof(total) &&
        rates_[i].Update(static_cast<double>(total), scope.start_ns(), &per_second)) {
      scope.Add(kCounterList[i].metric, per_second);
    }
  }
}

}  // namespace fathom::observe
