#pragma once
// Compile-time shape of the sm_80 decode kernels: the free-running warps of sm90/decode_warps, each
// of which loads its own keys.
#include "kernels/cuda/cache_code.h"
#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm80 {

template <int kDim_, int kRows_, bool kFloat16_>
struct DecodeConfig {
  static constexpr CacheCode kCode = CacheCode::kBf16;
  static constexpr bool kCopyEngine = false;
  static constexpr bool kQuantised = false;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kDim = kDim_;
  static constexpr int kDimV = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kElementBytes = 2;
  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kBlockRowBytes = 128;
  static constexpr int kSlotBytes = kTile * kRowBytes;
  static constexpr int kScaleBytes = 0;
  static constexpr int kMergeBytes = kWarps * kRows * (kDim * 4 + 8);
  static constexpr int kFixedBytes = 1024 + kMergeBytes;
  // A100 has 164 KiB an SM, others 100, of which a block may have 99: two blocks or one.
  static constexpr int kBudget = (kRows == 8 ? 81 : 99) * 1024;
  static constexpr int kFit = (kBudget - kFixedBytes) / kSlotBytes;
  static constexpr int kSlots = kFit < 8 ? kFit : 8;
  static constexpr int kSharedBytes = kFixedBytes + kSlots * kSlotBytes;
  static_assert(kSlots >= 3);
};

}  // namespace fathom::kernels::cuda::sm80
