#pragma once
// The producer warps of a wide decode block. Each brings every tile's share of 128 latent columns:
// one thread could not queue nine boxes a tile in time.
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/tile_walk.cuh"
#include "kernels/cuda/sm90/decode_wide/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

class WideProducer {
 public:
  using Config = WideConfig;
  __device__ __forceinline__ WideProducer(const DecodeParams& params, const DecodeMaps& maps,
                                          const WideShared& shared, int warp)
      : params_(params),
        maps_(maps),
        shared_(shared),
        warp_(Uniform(warp)),
        walk_(params, static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x % kBoxes),
              0) {}

  // ids: the page ids that travel with the part, one a lane.
  __device__ __forceinline__ void Run(const DecodePart& part, int32_t ids) {
    policy_ = CachePolicy(params_, part, Config::kTileBlocks * Config::kBlockBytes);
    walk_.Run(part, ids, [this](int32_t page, int token, const VisitedTile&) {
      int32_t pages[kBoxes];
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) pages[i] = __shfl_sync(~0u, page, i);
      const int stage = tiles_ % 2;
      const uint32_t phase = tiles_ / 2 % 2 ^ 1;
      ++tiles_;
      if (warp_ == 0) {
        const uint32_t full = shared_.Full(stage, 0);
        ptx::MbarrierWait(shared_.Empty(stage, 0), phase);
        if (ptx::ElectOne()) {
          ptx::MbarrierExpectBytes(full, Config::kBlockBytes);
          Load(1, 0, shared_.Rotated(stage), full, pages, token);
        }
      }
      const uint32_t full = shared_.Full(stage, 1 + warp_);
      ptx::MbarrierWait(shared_.Empty(stage, 1 + warp_ / 2), phase);
      if (ptx::ElectOne()) {
        ptx::MbarrierExpectBytes(full, 2 * Config::kBlockBytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int block = warp_ * 2 + i;
          Load(0, block * Config::kColumns, shared_.Latents(stage, block), full, pages, token);
        }
      }
      __syncwarp();
    });
  }

 private:
  static constexpr int kBoxes = 4;  // of a tile, at most

  __device__ __forceinline__ void Load(int plane, int column, uint32_t target, uint32_t full,
                                       const int32_t (&pages)[kBoxes], int token) const {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      if (i == walk_.boxes()) break;
      ptx::TmaLoad4(target, &maps_.plane[plane], full, column, token, 0, pages[i], policy_);
      target += walk_.box_tokens() * 128;
    }
  }

  const DecodeParams& params_;
  const DecodeMaps& maps_;
  const WideShared& shared_;
  int warp_;
  uint64_t policy_ = 0;
  TileWalk walk_;
  int tiles_ = 0;  // taken so far
};

}  // namespace fathom::kernels::cuda::sm90
