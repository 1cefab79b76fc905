#pragma once
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/sm90/decode_wide/config.h"

namespace fathom::kernels::cuda::sm90 {

struct WideShared {
  using Config = WideConfig;

  uint32_t tiles;     // [kStages][kTileBlocks][kTile][kColumns], swizzled; rotated keys last
  uint32_t q;         // [kTileBlocks][kRows][kColumns], swizzled
  uint32_t first_p;   // [kRows][kTile], swizzled
  uint32_t bases;     // [2][kRows] f32: of the exponentials, as each warpgroup leaves it
  uint32_t sums;      // [2][kRows] f32
  uint32_t largest;   // [2][kRows] f32: of each one's columns of the output
  uint32_t barriers;  // [kStages][kFulls + kEmpties]
  uint32_t pending;   // of MergeInside

  __device__ __forceinline__ explicit WideShared(const uint8_t* memory) {
    tiles = (ptx::SharedAddress(memory) + 1023) & ~1023u;
    q = tiles + Config::kStages * Config::kTileBlocks * Config::kBlockBytes;
    first_p = q + Config::kQBytes;
    bases = first_p + Config::kPBytes;
    sums = bases + 2 * Config::kRows * 4;
    largest = sums + 2 * Config::kRows * 4;
    barriers = largest + 2 * Config::kRows * 4;
    pending = barriers + Config::kStages * (Config::kFulls + Config::kEmpties) * 8;
  }
  // Of a warpgroup. The second's P lies over the last block of q, once that is in registers.
  __device__ __forceinline__ uint32_t P(int group) const {
    return first_p - group * Config::kPBytes;
  }
  __device__ __forceinline__ uint32_t Base(int group, int row) const {
    return bases + (group * Config::kRows + row) * 4;
  }
  __device__ __forceinline__ uint32_t Sum(int group, int row) const {
    return sums + (group * Config::kRows + row) * 4;
  }
  __device__ __forceinline__ uint32_t Largest(int group, int row) const {
    return largest + (group * Config::kRows + row) * 4;
  }
  __device__ __forceinline__ uint32_t Latents(int stage, int block) const {
    return tiles + (stage * Config::kTileBlocks + block) * Config::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t Rotated(int stage) const {
    return Latents(stage, Config::kFirstBlocks);
  }
  // 0: rotated keys; 1 + i: blocks 2i and 2i + 1 of the latents.
  __device__ __forceinline__ uint32_t Full(int stage, int i) const {
    return barriers + (stage * (Config::kFulls + Config::kEmpties) + i) * 8;
  }
  // 0: rotated keys; 1 + i: half i of the latents.
  __device__ __forceinline__ uint32_t Empty(int stage, int i) const {
    return Full(stage, Config::kFulls + i);
  }

  // One warp. The four warps that use a part of a tile last release it.
  __device__ __forceinline__ void Initialise(int lane) const {
    constexpr int kBarriers = Config::kFulls + Config::kEmpties;
    if (lane < Config::kStages * kBarriers) {
      ptx::MbarrierInit(barriers + lane * 8, lane % kBarriers < Config::kFulls ? 1 : 4);
    }
    if (lane == 0) ptx::StoreShared(pending, uint32_t{0});
    ptx::MbarrierInitFence();
  }
};

}  // namespace fathom::kernels::cuda::sm90
