#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace fathom::kernels::cuda {

// Accumulators of 16 rows: a thread has columns 0 and 1 of each eight, counted from its first one.
// Ones for those of them below column n, bit i for the i-th. (Bits become predicates several at a
// time, comparisons do not.)
__device__ __forceinline__ uint32_t ColumnsBelow(int n) {
  n = max(n, 0);
  const int count = n / 8 * 2 + min(n % 8, 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

}  // namespace fathom::kernels::cuda
