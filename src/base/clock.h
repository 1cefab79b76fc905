#pragma once
#include <cstdint>

namespace fathom {

int64_t NowNs();        // CLOCK_MONOTONIC: every interval in the program
int64_t ThreadCpuNs();  // CLOCK_THREAD_CPUTIME_ID: how long the calling thread ran
int64_t WallNowNs();    // CLOCK_REALTIME: only to anchor exported artifacts to UTC

}  // namespace fathom
