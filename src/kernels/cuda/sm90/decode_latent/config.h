#pragma once
// Compile-time shape of the sm_90a decode kernels for quantised latent caches (MLA).
#include <cstdint>

#include "kernels/cuda/cache_code.h"
#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm90 {

template <CacheCode kCode_>
struct LatentConfig {
  static constexpr CacheCode kCode = kCode_;
  static constexpr int kDimV = 512;
  static constexpr int kRope = 64;
  static constexpr int kScaleGroup = 128;  // elements that share a scale
  static constexpr int kGroups = kDimV / kScaleGroup;
  static constexpr int kRows = 16;
  static constexpr int kTile = kDecodeTileTokens;

  static constexpr int kKeyGroups = 4;  // of 16 keys of a tile
  static constexpr int kHalves = 2;     // warps that share 16 keys, and divide elements
  static constexpr int kWarps = kKeyGroups * kHalves;
  static constexpr int kThreads = (kWarps + 1) * 32;

  static constexpr int kBlockBytes = kTile * 128;  // of a scale group's codes, or rotated keys
  static constexpr int kScaleBytes = kTile * kGroups * 4;
  static constexpr int kSlotBytes = (kGroups + 1) * kBlockBytes + kScaleBytes;
  static constexpr int kSlots = 3;
  static constexpr int kSteps = (kDimV + kRope) / 16;
  static constexpr int kQBytes = kSteps * (kRows / 8) * 32 * 8;  // as operands, lane by lane
  static constexpr int kSwapBytes = 2 * kWarps * 32 * kRows / 2 * 4;
  static constexpr int kStateFloats = kDimV / kHalves * kRows / 32 + kRows;  // of a lane
  static constexpr int kMergeBytes = kWarps / 2 * kStateFloats * 32 * 4;
  static constexpr int kSharedBytes = 1024 + kSlots * kSlotBytes + kQBytes + kMergeBytes + 256;
  static_assert(kSlotBytes % 1024 == 0 && kSwapBytes <= kMergeBytes && kSharedBytes <= 227 * 1024);
};

}  // namespace fathom::kernels::cuda::sm90
