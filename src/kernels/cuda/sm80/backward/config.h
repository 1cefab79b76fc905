#pragma once
// Compile-time shape of the backward kernels.
#include <cstdint>

#include "kernels/cuda/backward_params.h"

namespace fathom::kernels::cuda::sm80 {

// kFloat16: all tensors are float16 instead of bf16, as are probabilities and their gradients where
// they are operands.
template <int kDim_, bool kFloat16_>
struct BackwardConfig {
  static constexpr int kDim = kDim_;
  static constexpr bool kFloat16 = kFloat16_;
  // What float16 operands are multiplied by, log2 (backward_params.h).
  static constexpr int kLift = kFloat16 ? kBackwardLiftF16 : 0;
  static constexpr float kUnlift = 1.f / (1 << kLift);
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = 64;  // queries or keys of a tile; 16 of the block's own a warp
  static constexpr int kTileBytes = kRows * kDim * 2;
  static constexpr int kStages = 2;
  // Own tiles (keys and values, or queries and gradients), those walked over, lse and delta.
  static constexpr int kSharedBytes = 1024 + (2 + 2 * kStages) * kTileBytes + kStages * kRows * 8;
};

}  // namespace fathom::kernels::cuda::sm80
