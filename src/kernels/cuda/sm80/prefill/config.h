#pragma once
// Compile-time shape of the sm_80 prefill kernels.
#include <cstdint>

namespace fathom::kernels::cuda::sm80 {

template <int kDimQk_, int kDimV_, bool kFloat16_>
struct PrefillConfig {
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowTiles = 2;  // of 16 query rows, a warp's
  static constexpr int kRows = kWarps * kRowTiles * 16;
  static constexpr int kKeys = kDimV_ > 64 ? 64 : 128;  // of a tile
  static constexpr int kQBytes = kRows * kDimQk * 2;
  static constexpr int kKBytes = kKeys * kDimQk * 2;
  static constexpr int kVBytes = kKeys * kDimV * 2;
  static constexpr int kSharedBytes = 1024 + kQBytes + kKBytes + kVBytes;
  static_assert(kDimQk % 64 == 0 && kDimV % 64 == 0);
};

}  // namespace fathom::kernels::cuda::sm80
