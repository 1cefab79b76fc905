#pragma once
// The roof that a CPU's own memory sets, measured where the work will run.
#include <cstddef>

#include "base/thread_pool.h"

namespace fathom::cost {

// Bytes a second that the pool's threads read from memory together: the median of `repeats` passes
// over `bytes`, which should exceed every cache.
double MeasureReadBandwidth(ThreadPool& pool, size_t bytes = size_t{256} << 20, int repeats = 5);

}  // namespace fathom::cost
