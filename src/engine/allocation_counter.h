#pragma once
// For tests: counts what operator new is asked for on the threads that want it.
#include <atomic>

namespace fathom::engine {

extern thread_local bool counting_allocations;
extern std::atomic<int> counted_allocations;

}  // namespace fathom::engine
