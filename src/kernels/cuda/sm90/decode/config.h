#pragma once
// Compile-time shape of the sm_90a decode kernels, and what the planner must know of it.
#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm90 {

inline constexpr int kSharedPerSmBytes = 228 * 1024;  // 1 KiB of it reserved by each block
inline constexpr int kMergeSharedBytes = 6 * 1024;    // left for a block of the merge kernel
inline constexpr int kPendingMergeBytes = 80;         // of MergeInside: a count, two results

// What partial outputs are made of. They are written and read at the rate of L2, and with the many
// columns of latents take as long as the keys of a short context: those are float16. The writer
// scales each row by a power of two so that its largest element is in [2^14, 2^15), and its state
// (maximum, sum) by the inverse: nothing else has to know. An element counts with 11 bits down to
// 2^-28 of the row's largest.
enum class PartialFormat {
  kFloat32,
  kFloat16,
  kPairedFloat16,  // of 16 columns pairs lie in the order of PairedColumn
};
constexpr PartialFormat PartialFormatOf(int dim_v, int rows, int architecture) {
  if (dim_v != 512 || architecture < 90) return PartialFormat::kFloat32;
  return rows == 64 ? PartialFormat::kFloat16 : PartialFormat::kPairedFloat16;
}
template <int kDimV, int kRows, int kArchitecture>
inline constexpr PartialFormat kPartialFormat = PartialFormatOf(kDimV, kRows, kArchitecture);

// kDimQk: elements of a key. kDimV: of a value. kRows: query rows (tokens x group) of one block,
// the N of its wgmma. kFloat16: queries, cache and output are float16 instead of bf16.
template <int kDimQk_, int kDimV_, int kRows_, bool kFloat16_>
struct DecodeConfig {
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kRows = kRows_;
  static constexpr bool kFloat16 = kFloat16_;
  static constexpr bool kLatent = kDimQk > kDimV;  // values are the keys' first elements (MLA)

  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kColumns = 64;  // of a block of the ring: 128 bytes, one swizzle row
  static constexpr int kBlockBytes = kTile * kColumns * 2;
  static constexpr int kQkBlocks = kDimQk / kColumns;
  static constexpr int kVBlocks = kDimV / kColumns;
  // Blocks of a tile that come from the first and the second plane.
  static constexpr int kFirstBlocks = kLatent ? kVBlocks : kQkBlocks;
  static constexpr int kSecondBlocks = kLatent ? kQkBlocks - kVBlocks : kVBlocks;
  static constexpr int kTileBlocks = kFirstBlocks + kSecondBlocks;

  // Latent tiles are wide: two warpgroups share their blocks, and swap partial scores.
  static constexpr int kGroups = kLatent ? 2 : 1;
  static constexpr int kOwnRows = kRows / kGroups;          // whose softmax a warpgroup does
  static constexpr int kGroupVBlocks = kVBlocks / kGroups;  // values columns of a warpgroup
  static constexpr int kConsumerThreads = kGroups * 128;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kBlocksPerSm = kLatent || kRows >= 64 ? 1 : 2;

  static constexpr int kQBytes = kQkBlocks * kRows * 128;
  static constexpr int kPBytes = kRows * 128;
  static constexpr int kSwapBytes = kGroups == 1 ? 0 : kRows * 256;
  static constexpr int kPeakBytes = kRows * 4 * 4;
  static constexpr int kStateBytes = kRows * 8;
  static constexpr int kFixedBytes = 1024 + kQBytes + kPBytes + kSwapBytes + kPeakBytes +
                                     kStateBytes + 512;  // 512: mbarriers, pending merges
  static constexpr int kBudget = (kSharedPerSmBytes - kMergeSharedBytes) / kBlocksPerSm - 1024;
  // More were tried, and fetch no faster (docs/kernels.md).
  static constexpr int kMaxSlots = kBlocksPerSm == 1 ? 18 : 8;
  static constexpr int kSlots = (kBudget - kFixedBytes) / kBlockBytes < kMaxSlots
                                    ? (kBudget - kFixedBytes) / kBlockBytes
                                    : kMaxSlots;
  static constexpr int kSharedBytes = kFixedBytes + kSlots * kBlockBytes;

  static_assert(kDimQk % kColumns == 0 && kDimV % kColumns == 0);
  static_assert(kOwnRows % 8 == 0 && kVBlocks % kGroups == 0);
  static_assert(kSlots > kTileBlocks && 2 * kSlots * 8 + kPendingMergeBytes <= 512);
};

}  // namespace fathom::kernels::cuda::sm90
