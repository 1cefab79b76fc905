#pragma once
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/sm90/decode_wide/config.h"

namespace fathom::kernels::cuda::sm90 {

template <class Config>
struct WideShared {
  uint32_t ring;      // [2 tiles][kTileBlocks][kTile][kColumns] bf16, swizzled
  uint32_t q;         // [kTileBlocks][kRows][kColumns] bf16, swizzled
  uint32_t first_p;   // [kRows][kTile] bf16, swizzled
  uint32_t peaks;     // [2][kRows] f32: running maximum, as each warpgroup leaves it
  uint32_t sums;      // [2][kRows] f32
  uint32_t barriers;  // [2][kSlots]: full, empty

  __device__ __forceinline__ explicit WideShared(const uint8_t* memory) {
    ring = (ptx::SharedAddress(memory) + 1023) & ~1023u;
    q = ring + Config::kSlots * Config::kBlockBytes;
    first_p = q + Config::kQBytes;
    peaks = first_p + Config::kPBytes;
    sums = peaks + 2 * Config::kRows * 4;
    barriers = sums + 2 * Config::kRows * 4;
  }
  // Of a warpgroup. The second's P lies over the last block of q, once that is in registers.
  __device__ __forceinline__ uint32_t P(int group) const {
    return first_p - group * Config::kPBytes;
  }
  __device__ __forceinline__ uint32_t Peak(int group, int row) const {
    return peaks + (group * Config::kRows + row) * 4;
  }
  __device__ __forceinline__ uint32_t Sum(int group, int row) const {
    return sums + (group * Config::kRows + row) * 4;
  }
  __device__ __forceinline__ uint32_t Slot(int slot) const {
    return ring + slot * Config::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t Full(int slot) const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t Empty(int slot) const {
    return barriers + (Config::kSlots + slot) * 8;
  }

  // One warp. The four warps that use a block last release it, in every block of the cluster that
  // may load into it.
  __device__ __forceinline__ void Initialise(int lane) const {
    if (lane < Config::kSlots) {
      ptx::MbarrierInit(Full(lane), 1);
      ptx::MbarrierInit(Empty(lane), 4 * Config::kCluster);
    }
    ptx::MbarrierInitFence();
  }
};

}  // namespace fathom::kernels::cuda::sm90
