#pragma once
// Where 16-byte chunks lie in shared memory: the 128-byte swizzle of TMA and wgmma (PTX ISA,
// "Swizzling Modes"), for threads that write such operands themselves. Pure functions, the same in
// kernels and in the host's bank model.
#include <cstdint>

#ifdef __CUDACC__
#define FATHOM_SWIZZLE __host__ __device__
#else
#define FATHOM_SWIZZLE
#endif

namespace fathom::kernels::cuda {

inline constexpr uint32_t kSwizzleRowBytes = 128;

// Byte offset of chunk `chunk` (of 8) of row `row`: chunks change places within their row, by the
// row's number in its group of eight, so that a column of chunks falls on all banks.
FATHOM_SWIZZLE inline uint32_t SwizzledOffset(uint32_t row, uint32_t chunk) {
  return row * kSwizzleRowBytes + ((chunk ^ (row & 7)) << 4);
}

}  // namespace fathom::kernels::cuda

#undef FATHOM_SWIZZLE
