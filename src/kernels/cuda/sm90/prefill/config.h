#pragma once
// Compile-time shape of the sm_90a prefill kernels.
#include <cstdint>

#include "kernels/cuda/prefill_schedule.h"

namespace fathom::kernels::cuda::sm90 {

// kLists: visits tile lists. A kernel of its own, so that the other pays nothing for it. kFloat16:
// queries, keys, values and output are float16 instead of bf16.
template <int kDimQk_, int kDimV_, bool kLists_, bool kFloat16_>
struct PrefillConfig {
  static constexpr bool kLists = kLists_;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kGroups = kDimQk > 64 ? 2 : 3;  // consumer warpgroups, 64 query rows each
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kKeys = kPrefillTileKeys;
  static constexpr int kStages = 2;
  static constexpr int kQStages = kDimQk > 128 ? 1 : 2;
  static constexpr int kQkBlocks = kDimQk / 64;  // of 64 elements: one 128-byte swizzle row
  static constexpr int kPeBlocks = kDimQk > kDimV ? (kDimQk - kDimV) / 64 : 0;
  static constexpr int kVBlocks = kDimV / 64;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // Registers of a thread after setmaxnreg. Their sum may not exceed what the block was launched
  // with (65536 / kThreads each, rounded down to 8), or the increase waits for ever.
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : kDimQk > 128 ? 40 : 56;
  static constexpr int kConsumerRegisters = kGroups == 3 ? 160 : kDimQk > 128 ? 232 : 224;

  static constexpr int kQBytes = kQkBlocks * kRows * 128;
  static constexpr int kKBytes = kQkBlocks * kKeys * 128;
  static constexpr int kVBytes = kVBlocks * kKeys * 128;
  static constexpr int kOutBuffers = kDimQk > 128 ? 1 : kVBlocks;  // of a warp, 64 columns each
  static constexpr int kWarpOutBytes = kOutBuffers * 16 * 128;
  static constexpr int kOutBytes = kGroups * 4 * kWarpOutBytes;
  static constexpr int kSmallBytes = 512 + kThreads * 4;  // work, barriers, per-thread words
  static constexpr int kSharedBytes =
      1024 + kQStages * kQBytes + kStages * (kKBytes + kVBytes) + kOutBytes + kSmallBytes;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(128 * (kProducerRegisters + kGroups * kConsumerRegisters) <=
                65536 / kThreads / 8 * 8 * kThreads);
};

}  // namespace fathom::kernels::cuda::sm90
