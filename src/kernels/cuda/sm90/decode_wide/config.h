#pragma once
// Compile-time shape of the sm_90a MLA decode kernel for many heads.
#include <cstdint>

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/sm90/decode/config.h"

namespace fathom::kernels::cuda::sm90 {

struct WideConfig {
  static constexpr int kDimQk = 576;
  static constexpr int kDimV = 512;
  static constexpr int kRows = 64;  // query rows of a block: the M of a wgmma
  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kColumns = 64;  // of a block of the ring: 128 bytes, one swizzle row
  static constexpr int kBlockBytes = kTile * kColumns * 2;
  static constexpr int kFirstBlocks = kDimV / kColumns;  // latents
  static constexpr int kTileBlocks = kDimQk / kColumns;  // and the rotated keys
  static constexpr int kStages = 2;                      // tiles in shared memory
  // Barriers of a tile: what arrives together (rotated keys; latents by two blocks), and what is
  // free together (rotated keys; the left and the right half of the latents).
  static constexpr int kFulls = 1 + kFirstBlocks / 2;
  static constexpr int kEmpties = 3;

  static constexpr int kConsumerThreads = 256;
  static constexpr int kThreads = kConsumerThreads + 32 * (kFulls - 1);  // and the producers
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  static constexpr int kQBytes = kTileBlocks * kRows * 128;
  static constexpr int kPBytes = kRows * 128;  // a second P lies over the rotated queries
  static constexpr int kSmallBytes =
      kStages * (kFulls + kEmpties) * 8 + 6 * kRows * 4 + kPendingMergeBytes;
  static constexpr int kSharedBytes =
      1024 + kStages * kTileBlocks * kBlockBytes + kQBytes + kPBytes + kSmallBytes;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(128 * (kProducerRegisters + 2 * kConsumerRegisters) <=
                65536 / kThreads / 8 * 8 * kThreads);
};

}  // namespace fathom::kernels::cuda::sm90
