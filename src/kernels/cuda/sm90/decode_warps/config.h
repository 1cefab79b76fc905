#pragma once
// Compile-time shape of the decode kernels whose warps work alone.
#include <cstdint>

#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm90 {

// How far scores and scales of values may grow before what they are relative to moves, log2. Over
// codes their products are float16, whatever the output is: ProbabilityRange leaves room for both.
template <bool kQuantised>
struct WarpsSlack {
  static constexpr int kScores = kQuantised ? 6 : 8;
  static constexpr int kScales = kQuantised ? 2 : 0;
};

// kDim: elements of keys and of values. kRows: query rows of a block, 8 or 16. kFloat16: queries,
// output and an unquantised cache are float16 instead of bf16.
template <CacheCode kCode_, int kDim_, int kRows_, bool kFloat16_>
struct WarpsConfig {
  static constexpr CacheCode kCode = kCode_;
  static constexpr int kDim = kDim_;
  static constexpr int kDimV = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr bool kCopyEngine = true;  // loads by TMA
  static constexpr bool kQuantised = kCode != CacheCode::kBf16;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kElementBytes = kQuantised ? 1 : 2;

  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kWarps = 4;  // consumers: each takes 16 keys of a tile
  static constexpr int kThreads = (kWarps + 1) * 32;
  static constexpr int kRowBytes = kDim * kElementBytes;                    // of a key
  static constexpr int kBlockRowBytes = kRowBytes < 128 ? kRowBytes : 128;  // swizzled
  static constexpr int kBlocks = kRowBytes / kBlockRowBytes;                // of a key tile
  static constexpr int kSlotBytes = kTile * kRowBytes;                      // keys or values
  // A box of scales starts at a multiple of 128 bytes: with pages of 16 tokens half is left free.
  static constexpr int kScaleBytes = kQuantised ? kTile * 8 : 0;
  static constexpr int kBlocksPerSm = kQuantised && kRows == 8 ? 3 : 2;

  static constexpr int kMergeBytes = kWarps * kRows * (kDim * 4 + 8);
  static constexpr int kSharedPerSm = 228 * 1024 - 6 * 1024;  // some is left for the merge kernel
  static constexpr int kBudget = kSharedPerSm / kBlocksPerSm - 1024;
  static constexpr int kFixedBytes = 1024 + kMergeBytes + 512;
  // More bytes on their way are fetched no sooner, and from scattered pages up to 8 % slower
  // (docs/kernels.md).
  static constexpr int kRingBytesPerSm = 70 * 1024;
  static constexpr int kWanted = kRingBytesPerSm / kBlocksPerSm / kSlotBytes;
  static constexpr int kFit = (kBudget - kFixedBytes) / (kSlotBytes + kScaleBytes);
  static constexpr int kSlots = kWanted < 3 ? 3 : kWanted < kFit ? kWanted : kFit;
  static constexpr int kSharedBytes = kFixedBytes + kSlots * (kSlotBytes + kScaleBytes);
  static_assert(kSlots >= 3 && kSlots <= kFit && kSlots * (2 * 8 + 8) <= 512);
};

}  // namespace fathom::kernels::cuda::sm90
