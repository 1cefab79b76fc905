#include "base/clock.h"

#include <ctime>

namespace fathom {
namespace {

int64_t Read(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

int64_t NowNs() { return Read(CLOCK_MONOTONIC); }
int64_t ThreadCpuNs() { return Read(CLOCK_THREAD_CPUTIME_ID); }
int64_t WallNowNs() { return Read(CLOCK_REALTIME); }

}  // namespace fathom
