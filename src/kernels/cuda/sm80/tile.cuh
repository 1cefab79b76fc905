#pragma once
// Tiles of 16-bit rows in shared memory for ldmatrix: blocks of 64 columns, 16-byte chunks swizzled
// so that neither rows nor columns of eight meet in a bank.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::sm80 {

template <int kRows>
struct Tile {
  uint32_t base;  // a multiple of 1024

  __device__ __forceinline__ uint32_t Chunk(int row, int chunk) const {
    return base + chunk / 8 * (kRows * 128) + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
  }
  // Rows [row, row + 16), columns [16 step, + 16), as the A operand of a product.
  __device__ __forceinline__ void LoadA(int row, int step, uint32_t (&a)[4]) const {
    ptx::LoadMatrix(At(Lane() % 16, Lane() / 16, row, step), a);
  }
  // The same transposed: element (k, m) of the tile is A's row m, column k; rows are k.
  __device__ __forceinline__ void LoadTransposedA(int row, int step, uint32_t (&a)[4]) const {
    ptx::LoadMatrixTransposed(At(Lane() / 16 * 8 + Lane() % 8, Lane() / 8 % 2, row, step), a);
  }
  // Rows are columns of B (n), columns [16 step, + 16) its k: b[0], b[1] of rows [row, row + 8),
  // b[2], b[3] of the next eight.
  __device__ __forceinline__ void LoadB(int row, int step, uint32_t (&b)[4]) const {
    ptx::LoadMatrix(At(Lane() / 16 * 8 + Lane() % 8, Lane() / 8 % 2, row, step), b);
  }
  // Rows [row, row + 16) are B's k, columns its n: b[0], b[1] of columns [16 step, + 8), b[2], b[3]
  // of the next eight.
  __device__ __forceinline__ void LoadTransposedB(int row, int step, uint32_t (&b)[4]) const {
    ptx::LoadMatrixTransposed(At(Lane() % 16, Lane() / 16, row, step), b);
  }

 private:
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x % 32); }
  // Chunk(row + lane_row, step * 2 + lane_chunk) for rows in multiples of eight: what depends on
  // the lane is one address for the whole tile, the step only flips bits of it.
  __device__ __forceinline__ uint32_t At(int lane_row, int lane_chunk, int row, int step) const {
    const uint32_t lane = base + lane_row * 128 + ((lane_chunk ^ (lane_row & 7)) << 4);
    return (lane ^ (step % 4 * 32)) + step / 4 * (kRows * 128) + row * 128;
  }
};

}  // namespace fathom::kernels::cuda::sm80
