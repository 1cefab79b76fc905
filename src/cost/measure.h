#pragma once
// The roof that a CPU's own memory sets, measured where the work will run.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"

namespace fathom::cost {

// Reads a buffer that should exceed every cache, with all threads of a pool.
class ReadProbe {
 public:
  explicit ReadProbe(ThreadPool& pool, size_t bytes = size_t{256} << 20);
  double Pass();  // bytes a second of one pass

 private:
  struct Free {
    void operator()(uint64_t* words) const;
  };
  ThreadPool& pool_;
  int64_t count_;
  std::unique_ptr<uint64_t[], Free> words_;
};

// Bytes a second that the pool's threads read from memory together: the median of `repeats` passes.
double MeasureReadBandwidth(ThreadPool& pool, size_t bytes = size_t{256} << 20, int repeats = 5);

}  // namespace fathom::cost
