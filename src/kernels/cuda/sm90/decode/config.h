#pragma once
// Compile-time shape of the sm_90a decode kernels, and what the planner must know of it.
#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm90 {

inline constexpr int kMaxSharedBytes = 227 * 1024;    // one block of an SM
inline constexpr int kSharedPerSmBytes = 228 * 1024;  // 1 KiB of it reserved by each block

// kDimQk: elements of a key. kDimV: of a value. kRows: query rows (tokens x group) of one block,
// the N of its wgmma. kLatent: values are the first kDimV elements of the keys (MLA).
template <int kDimQk_, int kDimV_, int kRows_, bool kLatent_>
struct DecodeConfig {
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kRows = kRows_;
  static constexpr bool kLatent = kLatent_;

  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kColumns = 64;  // of a block of the ring: 128 bytes, one swizzle row
  static constexpr int kBlockBytes = kTile * kColumns * 2;
  static constexpr int kQkBlocks = kDimQk / kColumns;
  static constexpr int kVBlocks = kDimV / kColumns;
  // Blocks of a tile that come from the first and the second plane.
  static constexpr int kFirstBlocks = kLatent ? kVBlocks : kQkBlocks;
  static constexpr int kSecondBlocks = kLatent ? kQkBlocks - kVBlocks : kVBlocks;
  static constexpr int kTileBlocks = kFirstBlocks + kSecondBlocks;

  static constexpr int kBlocksPerSm = kLatent || kRows >= 64 ? 1 : 2;
  static constexpr int kConsumerWarps = 4;
  static constexpr int kThreads = (kConsumerWarps + 1) * 32;

  static constexpr int kQBytes = kQkBlocks * kRows * 128;
  static constexpr int kPBytes = kRows * 128;
  static constexpr int kFixedBytes = 1024 + kQBytes + kPBytes + 2048;  // alignment, small arrays
  static constexpr int kBudget =
      kBlocksPerSm == 1 ? kMaxSharedBytes : kSharedPerSmBytes / kBlocksPerSm - 1024;
  static constexpr int kSlots = (kBudget - kFixedBytes) / kBlockBytes;
  static constexpr int kSharedBytes = kFixedBytes + kSlots * kBlockBytes;

  static_assert(kDimQk % kColumns == 0 && kDimV % kColumns == 0);
  static_assert(kSlots >= 2 * kTileBlocks);
};

}  // namespace fathom::kernels::cuda::sm90
