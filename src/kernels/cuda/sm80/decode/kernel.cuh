#pragma once
// Decode attention for sm_80 and later: four warps, each with 16 keys of every tile, which it
// copies itself (cp.async) into its rows of a ring and multiplies with mma.sync. No warp waits for
// another until the item ends.
#include <cuda_runtime.h>

#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/sm80/decode/config.h"
#include "kernels/cuda/sm90/decode/write_empty.cuh"
#include "kernels/cuda/sm90/decode_warps/consumer.cuh"

namespace fathom::kernels::cuda::sm80 {

// The part's keys and values in the order in which they are taken, kSlots - 1 of them ahead.
template <class Config>
class CopySource {
 public:
  using Shared = sm90::WarpsShared<Config>;

  __device__ __forceinline__ CopySource(const DecodeParams& params, const Shared& shared,
                                        const DecodePart& part, int kv_head)
      : params_(params),
        shared_(shared),
        kv_head_(kv_head),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        sequence_(part.sequence),
        tile_(part.tile),
        kv_tokens_(part.kv_tokens),
        left_(part.num_tiles),
        page_(PageOf()) {
#pragma unroll 1
    for (int i = 0; i < Config::kSlots - 1; ++i) Load();
  }

  __device__ __forceinline__ void Take() {
    ptx::CopyWait<Config::kSlots - 2>();
    __syncwarp();
  }
  __device__ __forceinline__ void Release() {
    __syncwarp();
    Load();
    if (++slot_ == Config::kSlots) slot_ = 0;
  }
  __device__ __forceinline__ uint32_t Slot() const { return shared_.Slot(slot_); }
  __device__ __forceinline__ ListedTile Tile(bool, int visit) const { return {visit, kNoMask}; }

 private:
  // Page of the key that lane / 2 has in this warp's rows; -1: there is no such key.
  __device__ __forceinline__ int32_t PageOf() const {
    const int key = tile_ * Config::kTile + warp_ * 16 + lane_ / 2;
    if (left_ == 0 || key >= kv_tokens_) return -1;
    return params_.page_table[sequence_ * params_.page_table_stride + key / params_.page_tokens];
  }

  // One group of copies, empty behind the part's end: groups are counted.
  __device__ __forceinline__ void Load() {
    if (left_ > 0) {
      const PagedPlane& plane = params_.plane[values_ ? 1 : 0];
      const int key = tile_ * Config::kTile + warp_ * 16 + lane_ / 2;
      const int row = warp_ * 16 + lane_ / 2;
      const bool live = page_ >= 0;
      const char* source = static_cast<const char*>(plane.base);
      if (live) {
        source += int64_t{page_} * plane.page_stride_bytes +
                  key % params_.page_tokens * plane.token_stride_bytes +
                  kv_head_ * plane.head_stride_bytes;
      }
      // Two lanes a row: neighbouring chunks, so that a row's bytes are asked for together.
#pragma unroll
      for (int i = 0; i < Config::kRowBytes / 32; ++i) {
        const int chunk = i * 2 + lane_ % 2;
        ptx::CopyAsync(shared_.Slot(load_slot_) + Shared::Chunk(row, chunk), source + chunk * 16,
                       live);
      }
      if (values_) NextTile();
      values_ = !values_;
    }
    ptx::CopyCommit();
    if (++load_slot_ == Config::kSlots) load_slot_ = 0;
  }

  __device__ __forceinline__ void NextTile() {
    --left_;
    ++tile_;
    if (left_ > 0 && tile_ == DecodeTiles(kv_tokens_)) {
      do {
        kv_tokens_ = params_.kv_lengths[++sequence_];
      } while (kv_tokens_ == 0);
      tile_ = 0;
    }
    page_ = PageOf();  // before it is needed: behind the other copies of this turn
  }

  const DecodeParams& params_;
  const Shared& shared_;
  int kv_head_;
  int warp_;
  int lane_;
  int sequence_;
  int tile_;
  int kv_tokens_;
  int left_;
  int32_t page_;
  bool values_ = false;
  int slot_ = 0;
  int load_slot_ = 0;
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads) void DecodeKernel(
    const __grid_constant__ DecodeParams params) {
  const sm90::WarpsShared<Config> shared(ptx::DynamicShared());
  const int groups = params.num_kv_heads * params.row_tiles;
  const int part_index = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int kv_head = group / params.row_tiles;
  const int row_tile = group % params.row_tiles;
  const DecodePart part = params.parts[part_index];
  CopySource<Config> source(params, shared, part, kv_head);
  sm90::WarpsConsumer<Config, CopySource<Config>>(params, shared, source, kv_head, row_tile)
      .Run(part_index, part);
  if (threadIdx.x < 32) sm90::WriteEmpty<Config>(params, part_index, kv_head, row_tile);
}

}  // namespace fathom::kernels::cuda::sm80
