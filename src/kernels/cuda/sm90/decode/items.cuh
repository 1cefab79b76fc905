#pragma once
// The items of a part: stretches of one sequence's (or list's) tiles that end in a result or a
// partial result.
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/sm90/decode/shared.cuh"

namespace fathom::kernels::cuda::sm90 {

struct DecodeItem {
  int sequence;   // or list
  int kv_tokens;  // to visit
  int query_begin;
  int query_tokens;
  int begin;  // tiles
  int end;
  int slot;
  bool new_queries;  // other than those of the item before
  bool whole;        // all of the sequence's (list's) tiles
};

// Every value is the same in all lanes.
class DecodeItems {
 public:
  __device__ __forceinline__ DecodeItems(const DecodeParams& params, int part_index,
                                         const DecodePart& part)
      : params_(params), part_index_(part_index), left_(Uniform(part.num_tiles)) {
    item_.sequence = Uniform(part.sequence);
    item_.kv_tokens = Uniform(part.kv_tokens);
    item_.query_begin = Uniform(part.query_begin);
    item_.query_tokens = Uniform(part.query_tokens);
    item_.begin = item_.end = Uniform(part.tile);
    item_.slot = Uniform(part.slot) - 1;
    item_.new_queries = true;
  }

  // False: no more.
  __device__ __forceinline__ bool Next() {
    if (left_ == 0) return false;
    item_.begin = item_.end;
    ++item_.slot;
    if (started_) {
      item_.new_queries = item_.begin == DecodeTiles(item_.kv_tokens);
      if (item_.new_queries) NextSequence();
    }
    started_ = true;
    item_.end = DecodeItemEnd(params_.split, item_.kv_tokens, item_.begin, left_);
    item_.whole = item_.begin == 0 && item_.end == DecodeTiles(item_.kv_tokens);
    left_ -= item_.end - item_.begin;
    return true;
  }
  __device__ __forceinline__ const DecodeItem& item() const { return item_; }

 private:
  __device__ __forceinline__ void NextSequence() {
    do {
      item_.kv_tokens = Uniform(DecodeLengths(params_)[++item_.sequence]);
    } while (item_.kv_tokens == 0);
    const int sequence = Uniform(DecodeListAt(params_, item_.sequence, 0).sequence);
    item_.query_begin = Uniform(params_.query_starts[sequence]);
    item_.query_tokens = Uniform(params_.query_starts[sequence + 1]) - item_.query_begin;
    item_.begin = 0;
    if (params_.split.max_segments == 0) item_.slot = part_index_ + item_.sequence;
  }

  const DecodeParams& params_;
  int part_index_;
  int left_;
  bool started_ = false;
  DecodeItem item_;
};

}  // namespace fathom::kernels::cuda::sm90
