#pragma once
// What the warps of a decode block share: the ring of key and value blocks and small arrays.
#include <cuda.h>

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/config.h"

namespace fathom::kernels::cuda::sm90 {

struct DecodeMaps {
  CUtensorMap plane[2];
};

// Position in the ring; a slot's phase flips each time round.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ void Skip(int count) {
    slot += count;
    if (slot >= kSlots) {
      slot -= kSlots;
      phase ^= 1;
    }
  }
};

// The same value in every lane, and known to be: what derives from it lives in uniform registers,
// where wgmma takes its descriptors from.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(~0u, value, 0); }

// L2 policy of a part's keys and values. Where several row tiles read them they should stay. Else
// they are read once: a small batch then spares what L2 holds; a large one replaces it anyway, and
// when that is modified lines, 4 % faster if these leave at the start and not all through the
// kernel.
__device__ __forceinline__ uint64_t CachePolicy(const DecodeParams& params, const DecodePart& part,
                                                int tile_bytes) {
  constexpr int64_t kLargeBytes = int64_t{256} << 20;
  const int64_t bytes = int64_t{part.num_tiles} * tile_bytes * gridDim.x;
  return params.row_tiles > 1 || bytes > kLargeBytes ? ptx::kL2EvictNormal : ptx::kL2EvictFirst;
}

template <class Config>
struct DecodeShared {
  uint32_t ring;  // [kSlots][kTile][kColumns], swizzled
  uint32_t q;     // [kQkBlocks][kRows][kColumns], swizzled
  uint32_t p;     // [kRows][kTile], swizzled
  float* swap;    // [kGroups][kRows / 4][128] partial scores for the other warpgroup; at the end
                  // [9][kRows] largest elements of each warp's columns, factors
  float* peaks;   // [4][kRows] of each warp's keys; at the end sums
  float2* state;  // [kRows] what the output of a row has to be multiplied with; at the end the
                  // row's maximum (log2) and sum
  uint32_t barriers;  // [2][kSlots]: full, empty
  uint32_t pending;   // of MergeInside

  __device__ __forceinline__ explicit DecodeShared(uint8_t* memory) {
    const uint32_t base = ptx::SharedAddress(memory);
    ring = (base + 1023) & ~1023u;
    q = ring + Config::kSlots * Config::kBlockBytes;
    p = q + Config::kQBytes;
    uint32_t at = p + Config::kPBytes;
    swap = reinterpret_cast<float*>(memory + (at - base));
    at += Config::kSwapBytes;
    peaks = reinterpret_cast<float*>(memory + (at - base));
    at += Config::kPeakBytes;
    state = reinterpret_cast<float2*>(memory + (at - base));
    barriers = at + Config::kStateBytes;
    pending = barriers + 2 * Config::kSlots * 8;
  }
  __device__ __forceinline__ uint32_t Slot(int slot) const {
    return ring + slot * Config::kBlockBytes;
  }
  __device__ __forceinline__ uint32_t Full(int slot) const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t Empty(int slot) const {
    return barriers + (Config::kSlots + slot) * 8;
  }

  // One warp. Every block of the ring is used by one warpgroup: its four warps release it.
  __device__ __forceinline__ void Initialise(int lane) const {
    if (lane < Config::kSlots) {
      ptx::MbarrierInit(Full(lane), 1);
      ptx::MbarrierInit(Empty(lane), 4);
    }
    if (lane == 0) ptx::StoreShared(pending, uint32_t{0});
    ptx::MbarrierInitFence();
  }
};

}  // namespace fathom::kernels::cuda::sm90
