#pragma once
// What the warps of a prefill block share.
#include <cuda.h>

#include <type_traits>

#include "kernels/cuda/prefill_schedule.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/sm90/prefill/config.h"

namespace fathom::kernels::cuda::sm90 {

struct PrefillMaps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap k_pe;  // of the last kPeBlocks blocks of keys, where they are apart
  CUtensorMap v;
  CUtensorMap out;  // boxes of a warp's 16 rows
};

// What a tile list says.
struct PrefillListed {
  int32_t count;
  int32_t first_tile;
  int32_t last_tile;
  int32_t window;
  int32_t anchors;
};

// One (query tile, head), as the producer hands it to the consumers.
template <bool kLists>
struct PrefillWork {
  int32_t sequence;  // -1: no more
  int32_t row;       // first query row of the tile, in its sequence
  int32_t head;
  int32_t kv_head;
  int32_t query_begin;
  int32_t queries;
  int32_t kv_begin;  // contiguous: row of the first key
  int32_t kv_tokens;
  int32_t position;  // of the first query, counted from the first key
  std::conditional_t<kLists, PrefillListed, PrefillTiles> tiles;

  __device__ __forceinline__ int TileAt(int visit) const {
    return visit < tiles.anchors ? visit : visit + tiles.skipped;
  }
};

template <class Config>
struct PrefillShared {
  // Work of the tile that is being stored, of the one that follows it, and of the one after that,
  // which the producer announces meanwhile.
  static constexpr int kWorkSlots = 4;
  using Work = PrefillWork<Config::kLists>;

  static constexpr int kBarrierBytes = 96 + 2 * kWorkSlots * 8;
  static constexpr int kListedBytes = Config::kLists ? Config::kStages * 8 : 0;

  uint32_t q;    // [kQStages][kQkBlocks][kRows][64] bf16, swizzled
  uint32_t k;    // [kStages][kQkBlocks][kKeys][64]
  uint32_t v;    // [kStages][kVBlocks][kKeys][64]
  uint32_t out;  // [consumer warps][kOutBuffers][16][64] bf16, swizzled
  Work* work;    // [kWorkSlots]
  uint32_t barriers;
  uint32_t unread;  // [kThreads] f32, written to order instructions

  __device__ __forceinline__ explicit PrefillShared(uint8_t* memory) {
    const uint32_t base = ptx::SharedAddress(memory);
    q = (base + 1023) & ~1023u;
    k = q + Config::kQStages * Config::kQBytes;
    v = k + Config::kStages * Config::kKBytes;
    out = v + Config::kStages * Config::kVBytes;
    const uint32_t small = out + Config::kOutBytes;
    work = reinterpret_cast<Work*>(memory + (small - base));
    barriers = small + kWorkSlots * sizeof(Work);
    static_assert(kWorkSlots * sizeof(Work) % 8 == 0 &&
                  kWorkSlots * sizeof(Work) + kBarrierBytes + kListedBytes <= 512);
    unread = small + 512;
  }
  __device__ __forceinline__ uint32_t QFull(int i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t QEmpty(int i) const { return barriers + 16 + i * 8; }
  __device__ __forceinline__ uint32_t KFull(int i) const { return barriers + 32 + i * 8; }
  __device__ __forceinline__ uint32_t KEmpty(int i) const { return barriers + 48 + i * 8; }
  __device__ __forceinline__ uint32_t VFull(int i) const { return barriers + 64 + i * 8; }
  __device__ __forceinline__ uint32_t VEmpty(int i) const { return barriers + 80 + i * 8; }
  __device__ __forceinline__ uint32_t WorkFull(int i) const { return barriers + 96 + i * 8; }
  __device__ __forceinline__ uint32_t WorkEmpty(int i) const {
    return barriers + 96 + (kWorkSlots + i) * 8;
  }

  // The listed tile whose keys a stage holds.
  __device__ __forceinline__ uint32_t Listed(int stage) const {
    return barriers + kBarrierBytes + stage * 8;
  }

  __device__ __forceinline__ void Initialise() const {
    constexpr int kWarps = Config::kGroups * 4;
    static_assert(Config::kStages == 2 && Config::kQStages <= 2);
    for (int i = 0; i < kWorkSlots; ++i) {
      ptx::MbarrierInit(WorkFull(i), 1);
      ptx::MbarrierInit(WorkEmpty(i), kWarps);
    }
    for (int i = 0; i < Config::kQStages; ++i) {
      ptx::MbarrierInit(QFull(i), 1);
      ptx::MbarrierInit(QEmpty(i), kWarps);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::MbarrierInit(KFull(i), 1);
      ptx::MbarrierInit(KEmpty(i), kWarps);
      ptx::MbarrierInit(VFull(i), 1);
      ptx::MbarrierInit(VEmpty(i), kWarps);
    }
    ptx::MbarrierInitFence();
  }
};

// Stage and phase of a pipeline after `count` uses; kStages is a power of two.
template <int kStages>
struct PipelinePosition {
  uint32_t count = 0;
  __device__ __forceinline__ int Stage() const { return static_cast<int>(count % kStages); }
  __device__ __forceinline__ uint32_t Phase() const { return count / kStages & 1; }
  __device__ __forceinline__ void Next() { ++count; }
};

}  // namespace fathom::kernels::cuda::sm90
