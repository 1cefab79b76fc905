#pragma once
// Compile-time shape of the sm_90a decode kernels for quantised latent caches (MLA).
#include <cstdint>

#include "kernels/cuda/cache_code.h"
#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/sm90/decode/config.h"

namespace fathom::kernels::cuda::sm90 {

// kFloat16: queries, rotated keys and output are float16 instead of bf16.
template <CacheCode kCode_, bool kFloat16_>
struct LatentConfig {
  static constexpr CacheCode kCode = kCode_;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kDimV = 512;
  static constexpr int kRope = 64;
  static constexpr int kScaleGroup = kLatentScaleGroup;
  static constexpr int kGroups = kDimV / kScaleGroup;
  static constexpr int kRows = 16;
  static constexpr int kTile = kDecodeTileTokens;

  static constexpr int kKeyGroups = 4;  // of 16 keys of a tile
  static constexpr int kHalves = 2;     // warps that share 16 keys, and divide elements
  static constexpr int kWarps = kKeyGroups * kHalves;
  // Named barriers: of all consumers, then one for each group of keys.
  static constexpr int kConsumersBarrier = 1;
  // A warpgroup, of which one warp works, produces: registers move between warpgroups only.
  static constexpr int kThreads = (kWarps + 4) * 32;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  // A token is one record of codes, scales and rotated keys. 656 bytes behind each other put eight
  // tokens' chunks of 16 bytes into different banks: nothing is swizzled.
  static constexpr int kScalesAt = kDimV;
  static constexpr int kRopeAt = kScalesAt + kGroups * 4;
  static constexpr int kTokenBytes = kRopeAt + kRope * 2;
  static constexpr int kSlotBytes = kTile * kTokenBytes;
  static constexpr int kSlots = 3;
  static constexpr int kSteps = (kDimV + kRope) / 16;
  static constexpr int kCodeSteps = kDimV / 16;
  static constexpr int kQBytes = kSteps * (kRows / 8) * 32 * 8;  // as operands, lane by lane
  static constexpr int kSwapBytes = 2 * kWarps * 32 * kRows / 2 * 4;
  static constexpr int kStateFloats = kDimV / kHalves * kRows / 32 + kRows;  // of a lane
  static constexpr int kMergeBytes = kWarps / 2 * kStateFloats * 32 * 4;
  static constexpr int kPeakBytes = kWarps / 2 * kRows * 4;
  static constexpr int kSharedBytes =
      128 + kSlots * kSlotBytes + kQBytes + kMergeBytes + kPeakBytes + 128;
  static_assert(kTokenBytes == 656 && kSlotBytes % 128 == 0 && kTokenBytes % 128 == 16);
  static_assert(2 * kSlots * 8 + kPendingMergeBytes <= 128);
  static_assert(kSwapBytes <= kMergeBytes && kSharedBytes <= 227 * 1024);
};

}  // namespace fathom::kernels::cuda::sm90
