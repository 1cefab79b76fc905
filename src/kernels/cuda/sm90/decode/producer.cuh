#pragma once
// The producer warp of a decode block: streams the part's boxes through the ring.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

template <class Config, class Shared>
class DecodeProducer {
 public:
  __device__ __forceinline__ DecodeProducer(const DecodeParams& params, const DecodeMaps& maps,
                                            const Shared& shared, int kv_head)
      : params_(params),
        maps_(maps),
        shared_(shared),
        kv_head_(kv_head),
        lane_(static_cast<int>(threadIdx.x % 32)) {
    // log2 of tokens: page sizes are 16, 32, 64, 128.
    page_shift_ = 31 - __clz(params.page_tokens);
    const int box_shift = page_shift_ < 6 ? page_shift_ : 6;
    box_tokens_ = 1 << box_shift;
    boxes_ = kDecodeTileTokens >> box_shift;
  }

  // ids: the page ids that travel with the part, one a lane.
  __device__ __forceinline__ void Run(const DecodePart& part, int32_t ids) {
    policy_ = CachePolicy(params_, part, Config::kTileBlocks * Config::kBlockBytes);
    int sequence = part.sequence;
    int tile = Uniform(part.tile);
    int kv_tokens = Uniform(part.kv_tokens);
    int left = Uniform(part.num_tiles);
    while (left > 0) {
      const int tiles = DecodeTiles(kv_tokens);
      const int end = tiles - tile < left ? tiles : tile + left;
      left -= end - tile;
      int first_entry = FirstEntry(tile);
      int32_t next_ids = LoadIds(sequence, kv_tokens, first_entry + 32);
      for (; tile < end; ++tile) {
        const int entry = FirstEntry(tile);
        if (entry - first_entry >= 32) {
          first_entry += 32;
          ids = next_ids;
          next_ids = LoadIds(sequence, kv_tokens, first_entry + 32);
        }
        LoadTile(ids, entry - first_entry, tile);
      }
      if (left == 0) break;
      do {
        kv_tokens = Uniform(params_.kv_lengths[++sequence]);
      } while (kv_tokens == 0);
      tile = 0;
      ids = LoadIds(sequence, kv_tokens, 0);
    }
  }

 private:
  // Page-table entry of a tile's first token.
  __device__ __forceinline__ int FirstEntry(int tile) const {
    return page_shift_ <= 6 ? tile << (6 - page_shift_) : tile >> (page_shift_ - 6);
  }

  // Entries [first, first + 32), one a lane; those past the sequence's end name a page out of
  // bounds, which the copy engine fills with zeros.
  __device__ __forceinline__ int32_t LoadIds(int sequence, int kv_tokens, int first) const {
    const int entry = first + lane_;
    const int pages = (kv_tokens + params_.page_tokens - 1) >> page_shift_;
    return entry < pages ? params_.page_table[sequence * params_.page_table_stride + entry]
                         : static_cast<int32_t>(params_.num_pages);
  }

  __device__ __forceinline__ void LoadTile(int32_t ids, int entry, int tile) {
    int32_t pages[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pages[i] = __shfl_sync(~0u, ids, (entry + i) % 32);
    const int token = page_shift_ > 6 ? tile % (params_.page_tokens / 64) * 64 : 0;
#pragma unroll
    for (int block = 0; block < Config::kTileBlocks; ++block) {
      const bool first = block < Config::kFirstBlocks;
      const int column = (first ? block : block - Config::kFirstBlocks) * Config::kColumns;
      if (lane_ == 0) {
        ptx::MbarrierWait(shared_.Empty(position_.slot), position_.phase ^ 1);
        ptx::MbarrierExpectBytes(shared_.Full(position_.slot), Config::kBlockBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < boxes_) {
            const uint32_t target = shared_.Slot(position_.slot) + i * box_tokens_ * 128;
            const CUtensorMap* map = &maps_.plane[first ? 0 : 1];
            const uint32_t full = shared_.Full(position_.slot);
            ptx::TmaLoad4(target, map, full, column, token, kv_head_, pages[i], policy_);
          }
        }
      }
      position_.Next();
    }
    __syncwarp();
  }

  const DecodeParams& params_;
  const DecodeMaps& maps_;
  const Shared& shared_;
  int kv_head_;
  int lane_;
  uint64_t policy_ = 0;
  int page_shift_;
  int box_tokens_;
  int boxes_;
  RingPosition<Config::kSlots> position_;
};

}  // namespace fathom::kernels::cuda::sm90
