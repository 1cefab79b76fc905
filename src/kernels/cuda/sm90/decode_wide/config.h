#pragma once
// Compile-time shape of the sm_90a MLA decode kernel for many heads.
#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda::sm90 {

// kCluster: blocks that work on the same keys and share their loads.
template <int kCluster_>
struct WideConfig {
  static constexpr int kCluster = kCluster_;
  static constexpr int kDimQk = 576;
  static constexpr int kDimV = 512;
  static constexpr int kRows = 64;  // query rows of a block: the M of a wgmma
  static constexpr int kTile = kDecodeTileTokens;
  static constexpr int kColumns = 64;  // of a block of the ring: 128 bytes, one swizzle row
  static constexpr int kBlockBytes = kTile * kColumns * 2;
  static constexpr int kFirstBlocks = kDimV / kColumns;  // latents
  static constexpr int kTileBlocks = kDimQk / kColumns;  // and the rotated keys
  static constexpr int kSlots = 2 * kTileBlocks;         // two tiles

  static constexpr int kConsumerThreads = 256;
  static constexpr int kThreads = kConsumerThreads + 128;  // the producer gives up its registers
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  static constexpr int kQBytes = kTileBlocks * kRows * 128;
  static constexpr int kPBytes = kRows * 128;  // a second P lies over the rotated queries
  static constexpr int kSmallBytes = 2 * kSlots * 8 + 4 * kRows * 4;
  static constexpr int kSharedBytes = 1024 + kSlots * kBlockBytes + kQBytes + kPBytes + kSmallBytes;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(128 * (kProducerRegisters + 2 * kConsumerRegisters) <=
                65536 / kThreads / 8 * 8 * kThreads);
};

}  // namespace fathom::kernels::cuda::sm90
