#pragma once
// A model of shared memory's 32 banks of 4 bytes: how many wavefronts a warp's access takes, and
// how many it would take without conflicts (CUDA C++ Programming Guide, "Shared Memory").
//
// Threads that touch the same 4-byte word share it. Accesses of 8 and 16 bytes a thread are served
// by half and quarter warps; matrix instructions (ldmatrix, stmatrix, and each 8 x 16-byte piece
// that wgmma reads) are served 8 rows of 16 bytes at a time, which is a quarter warp too.
#include <cstdint>
#include <span>

namespace fathom::cost {

struct Wavefronts {
  int64_t count = 0;
  int64_t ideal = 0;  // of the same bytes, each word moved once, 128 bytes a wavefront

  int64_t excess() const { return count - ideal; }
  Wavefronts& operator+=(const Wavefronts& other) {
    count += other.count;
    ideal += other.ideal;
    return *this;
  }
};

// One warp's access: byte addresses of its active threads in lane order, `bytes` (4, 8 or 16,
// aligned to itself) each.
Wavefronts CountWavefronts(std::span<const uint32_t> addresses, int bytes);

// The same for threads `stride_bytes` apart: thread i of 32 at i * stride_bytes.
Wavefronts StridedWavefronts(uint32_t stride_bytes, int bytes);

}  // namespace fathom::cost
