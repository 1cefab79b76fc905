#pragma once
// Compile-time shape of the sm_80 decode kernels for latent caches (MLA, bf16 or float16).
#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm80 {

template <int kRows_, bool kFloat16_>
struct LatentConfig {
  static constexpr int kDimV = 512;
  static constexpr int kRope = 64;
  static constexpr int kDimQk = kDimV + kRope;
  static constexpr int kRows = kRows_;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStepKeys = 32;   // between two rounds of barriers
  static constexpr int kGroupKeys = 16;  // of a slot of the ring
  static constexpr int kQuarters = 4;    // of a key's elements: warps that share 16 keys
  static constexpr int kQkSteps = kDimQk / 16 / kQuarters;
  static constexpr int kLatentSteps = kDimV / 16 / kQuarters;
  static constexpr int kOwnColumns = kDimV / kWarps;  // of the output

  static constexpr int kKeyBytes = kDimQk * 2;
  static constexpr int kSlotBytes = kGroupKeys * kKeyBytes;
  // A block may have 99 KiB where an SM has 100 (8.6, 8.9); with fewer partial scores there is room
  // for one more slot.
  static constexpr int kSlots = kRows == 16 ? 5 : 4;
  static constexpr int kScoreBytes = kQuarters * kRows * kStepKeys * 4;
  // Two blocks fit where an SM has 228 KiB: their registers allow it when rows are few.
  static constexpr int kBlocksPerSm = kRows == 16 ? 2 : 1;
  static constexpr int kSharedBytes = 128 + kSlots * kSlotBytes + kScoreBytes + kRows * (4 + 8);
  static_assert(kSharedBytes <= 99 * 1024);
  static_assert(kQkSteps == kLatentSteps + 1 && kOwnColumns == 64);
};

}  // namespace fathom::kernels::cuda::sm80
