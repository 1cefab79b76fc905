#pragma once
// The tiles of a part and the pages they lie in, for a producer warp.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/sm90/decode/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

class TileWalk {
 public:
  // box: which box of a tile this lane asks about.
  __device__ __forceinline__ TileWalk(const DecodeParams& params, int lane, int box)
      : params_(params), lane_(lane), box_(box) {
    page_shift_ = 31 - __clz(params.page_tokens);  // page sizes are 16, 32, 64, 128
    const int box_shift = page_shift_ < 6 ? page_shift_ : 6;
    box_tokens_ = 1 << box_shift;
    boxes_ = kDecodeTileTokens >> box_shift;
  }

  // A tile is so many boxes of so many tokens, each in its page.
  __device__ __forceinline__ int boxes() const { return boxes_; }
  __device__ __forceinline__ int box_tokens() const { return box_tokens_; }

  // The whole warp. first: the page ids that travel with the part, one a lane. Calls
  // load(page of the lane's box, first token in the page, tile).
  template <class Load>
  __device__ __forceinline__ void Run(const DecodePart& part, int32_t first, Load load) const {
    int sequence = part.sequence;
    int visit = Uniform(part.tile);
    int tokens = Uniform(part.kv_tokens);
    int left = Uniform(part.num_tiles);
    const bool lists = params_.tile_lists != nullptr;
    Ids ids = {first, 0};
    if (lists && left > 0) ids = LoadIds(sequence, tokens, FirstEntry(visit));
    while (left > 0) {
      const int tiles = DecodeTiles(tokens);
      const int end = tiles - visit < left ? tiles : visit + left;
      left -= end - visit;
      int first_entry = FirstEntry(visit);
      Ids next_ids = LoadIds(sequence, tokens, first_entry + 32);
      for (; visit < end; ++visit) {
        if (FirstEntry(visit) - first_entry >= 32) {
          first_entry += 32;
          ids = next_ids;
          next_ids = LoadIds(sequence, tokens, first_entry + 32);
        }
        const int entry = FirstEntry(visit) - first_entry;
        const int tile = lists ? __shfl_sync(~0u, ids.tile, entry) : visit;
        // Boxes that the tile does not have are beyond the 32 entries, and wrap.
        const int32_t page = __shfl_sync(~0u, ids.page, entry + box_);
        load(page, page_shift_ > 6 ? (tile & ((params_.page_tokens >> 6) - 1)) * 64 : 0, tile);
      }
      if (left == 0) break;
      do {
        tokens = Uniform(DecodeLengths(params_)[++sequence]);
      } while (tokens == 0);
      visit = 0;
      ids = LoadIds(sequence, tokens, 0);
    }
  }

 private:
  // Of one page-table entry, or with lists of one tile.
  struct Ids {
    int32_t page;
    int32_t tile;
  };

  // Entry of a visit. With lists each tile has its own: its page holds all of it.
  __device__ __forceinline__ int FirstEntry(int visit) const {
    if (params_.tile_lists != nullptr) return visit;
    return page_shift_ <= 6 ? visit << (6 - page_shift_) : visit >> (page_shift_ - 6);
  }
  // Entries [first, first + 32), one a lane. Those past the sequence's end name a page out of
  // bounds, which arrives as zeros.
  __device__ __forceinline__ Ids LoadIds(int sequence, int tokens, int first) const {
    const int32_t* table = params_.page_table + sequence * params_.page_table_stride;
    const int entry = first + lane_;
    Ids ids = {static_cast<int32_t>(params_.num_pages), 0};
    if (params_.tile_lists != nullptr) {
      if (entry < DecodeTiles(tokens)) {
        ids.tile = params_.tile_lists[sequence * params_.tile_list_stride + entry];
        ids.page = table[ids.tile >> (page_shift_ - 6)];
      }
    } else if (entry < (tokens + params_.page_tokens - 1) >> page_shift_) {
      ids.page = table[entry];
    }
    return ids;
  }

  const DecodeParams& params_;
  int lane_;
  int box_;
  int page_shift_;
  int box_tokens_;
  int boxes_;
};

}  // namespace fathom::kernels::cuda::sm90
