#pragma once
// Tiles of bf16 rows in shared memory for ldmatrix: blocks of 64 columns, 16-byte chunks swizzled
// so that neither rows nor columns of eight meet in a bank.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::sm80 {

template <int kRows>
struct Tile {
  uint32_t base;

  __device__ __forceinline__ uint32_t Chunk(int row, int chunk) const {
    return base + chunk / 8 * (kRows * 128) + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
  }
  // Rows [row, row + 16), columns [16 step, + 16), as the A operand of a product.
  __device__ __forceinline__ void LoadA(int row, int step, uint32_t (&a)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::LoadMatrix(Chunk(row + lane % 16, step * 2 + lane / 16), a);
  }
  // The same transposed: element (k, m) of the tile is A's row m, column k; rows are k.
  __device__ __forceinline__ void LoadTransposedA(int row, int step, uint32_t (&a)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::LoadMatrixTransposed(Chunk(row + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2), a);
  }
  // Rows are columns of B (n), columns [16 step, + 16) its k: b[0], b[1] of rows [row, row + 8),
  // b[2], b[3] of the next eight.
  __device__ __forceinline__ void LoadB(int row, int step, uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::LoadMatrix(Chunk(row + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2), b);
  }
  // Rows [row, row + 16) are B's k, columns its n: b[0], b[1] of columns [16 step, + 8), b[2], b[3]
  // of the next eight.
  __device__ __forceinline__ void LoadTransposedB(int row, int step, uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::LoadMatrixTransposed(Chunk(row + lane % 16, step * 2 + lane / 16), b);
  }
};

}  // namespace fathom::kernels::cuda::sm80
