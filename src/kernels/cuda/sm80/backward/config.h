#pragma once
// Compile-time shape of the backward kernels.
#include <cstdint>

namespace fathom::kernels::cuda::sm80 {

template <int kDim_>
struct BackwardConfig {
  static constexpr int kDim = kDim_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = 64;  // queries or keys of a tile; 16 of the block's own a warp
  static constexpr int kTileBytes = kRows * kDim * 2;
  static constexpr int kStages = 2;
  // Own tiles (keys and values, or queries and gradients), those walked over, lse and delta.
  static constexpr int kSharedBytes = 1024 + (2 + 2 * kStages) * kTileBytes + kStages * kRows * 8;
};

}  // namespace fathom::kernels::cuda::sm80
