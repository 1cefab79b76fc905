#pragma once
// The tiles of a part and the pages they lie in, for a producer warp.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/sm90/decode/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

struct VisitedTile {
  int kv_head;
  int tile;  // of its sequence
  int mask;  // of a listed tile
};

class TileWalk {
 public:
  // box: which box of a tile this lane asks about. kv_head: of the block, where there are no lists.
  __device__ __forceinline__ TileWalk(const DecodeParams& params, int lane, int box, int kv_head)
      : params_(params), lane_(lane), box_(box), kv_head_(kv_head) {
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
    int visit = Uniform(part.tile);
    int left = Uniform(part.num_tiles);
    if (left == 0) return;
    const bool lists = params_.lists != nullptr;
    Source source = SourceAt(part.sequence, Uniform(part.kv_tokens));
    Ids ids = {first, {}};
    if (lists) ids = LoadIds(source, FirstEntry(visit));
    while (true) {
      const int tiles = DecodeTiles(source.tokens);
      const int end = tiles - visit < left ? tiles : visit + left;
      left -= end - visit;
      int first_entry = FirstEntry(visit);
      Ids next_ids = LoadIds(source, first_entry + 32);
      for (; visit < end; ++visit) {
        if (FirstEntry(visit) - first_entry >= 32) {
          first_entry += 32;
          ids = next_ids;
          next_ids = LoadIds(source, first_entry + 32);
        }
        const int entry = FirstEntry(visit) - first_entry;
        VisitedTile tile = {source.kv_head, visit, kNoMask};
        if (lists) {
          tile.tile = __shfl_sync(~0u, ids.listed.tile, entry);
          tile.mask = __shfl_sync(~0u, ids.listed.mask, entry);
        }
        // Boxes that the tile does not have are beyond the 32 entries, and wrap.
        const int32_t page = __shfl_sync(~0u, ids.page, entry + box_);
        load(page, page_shift_ > 6 ? (tile.tile & ((params_.page_tokens >> 6) - 1)) * 64 : 0, tile);
      }
      if (left == 0) break;
      int next = source.index;
      int tokens;
      do {
        tokens = Uniform(DecodeLengths(params_)[++next]);
      } while (tokens == 0);
      source = SourceAt(next, tokens);
      visit = 0;
      ids = LoadIds(source, 0);
    }
  }

 private:
  // Of one page-table entry, or with lists of one tile.
  struct Ids {
    int32_t page;
    ListedTile listed;
  };
  // A sequence, or a list.
  struct Source {
    int index;
    int tokens;  // to visit
    int kv_head;
    const int32_t* pages;
    const ListedTile* listed;
  };

  __device__ __forceinline__ Source SourceAt(int index, int tokens) const {
    const DecodeList list = DecodeListAt(params_, index, kv_head_);
    return {index, tokens, list.kv_head,
            params_.page_table + list.sequence * params_.page_table_stride,
            params_.listed + list.first_tile};
  }

  // Entry of a visit. With lists each tile has its own: its page holds all of it.
  __device__ __forceinline__ int FirstEntry(int visit) const {
    if (params_.lists != nullptr) return visit;
    return page_shift_ <= 6 ? visit << (6 - page_shift_) : visit >> (page_shift_ - 6);
  }
  // Entries [first, first + 32), one a lane. Those past the sequence's end name a page out of
  // bounds, which arrives as zeros.
  __device__ __forceinline__ Ids LoadIds(const Source& source, int first) const {
    const int entry = first + lane_;
    Ids ids = {static_cast<int32_t>(params_.num_pages), {}};
    if (params_.lists != nullptr) {
      if (entry < DecodeTiles(source.tokens)) {
        ids.listed = source.listed[entry];
        ids.page = source.pages[ids.listed.tile >> (page_shift_ - 6)];
      }
    } else if (entry < (source.tokens + params_.page_tokens - 1) >> page_shift_) {
      ids.page = source.pages[entry];
    }
    return ids;
  }

  const DecodeParams& params_;
  int lane_;
  int box_;
  int kv_head_;
  int page_shift_;
  int box_tokens_;
  int boxes_;
};

}  // namespace fathom::kernels::cuda::sm90
