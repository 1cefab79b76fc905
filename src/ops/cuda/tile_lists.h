#pragma once
// A sparse plan (ops/sparse_plan.h) as the tile lists that the CUDA kernels read
// (kernels/cuda/tile_lists.h). Pure host code: lists are made where the step's lengths are known,
// copied to the device as one piece of memory, and the kernels visit what they list and nothing
// else.
//
// Room fixes where each array lies in that memory, so that kernels captured into a graph find the
// lists of a later step in the same place.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"
#include "ops/cuda/decode_attention.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/sparse_plan.h"

namespace fathom::ops {

// Upper bounds: lists, listed tiles and masks.
struct TileListRoom {
  int64_t lists = 0;
  int64_t tiles = 0;
  int64_t masks = 0;  // decode: of 64 bits; prefill: of 128 bits
};

// Decode: a list for each sequence and run of heads.
struct DecodeTileLists {
  std::vector<kernels::cuda::DecodeList> lists;
  std::vector<int32_t> visited_tokens;  // of each list
  std::vector<kernels::cuda::ListedTile> tiles;
  std::vector<uint64_t> masks;

  TileListRoom Needs() const;
  int32_t LongestTokens() const;  // most visited tokens of a list; DecodeAttentionShape's bound
};

// Of tiles of 64 keys, with all of a sequence's queries in one tile of rows (at most 8).
Result<DecodeTileLists> MakeDecodeTileLists(const sparse::Plan& plan);
// For the learned rows alone, which every query of every head sees that is not off: the keys are
// the rows, kv_lengths their number for each sequence.
Result<DecodeTileLists> MakeLearnedDecodeTileLists(const sparse::Plan& plan);

// Prefill: a list for each tile of query rows of each head, in the order in which blocks take them:
// heads in the plan's sections, in a section those with the most tiles first; short ones at the
// end.
struct PrefillTileLists {
  std::vector<kernels::cuda::PrefillList> lists;
  std::vector<kernels::cuda::ListedTile> tiles;
  std::vector<std::array<uint64_t, 2>> masks;

  TileListRoom Needs() const;
};

// `plan` for tiles of the kernel's rows and keys (PrefillAttentionPlan::kernel).
Result<PrefillTileLists> MakePrefillTileLists(const sparse::Plan& plan,
                                              const PrefillAttentionPlan& prefill);
// As above; such a call is not causal.
Result<PrefillTileLists> MakeLearnedPrefillTileLists(const sparse::Plan& plan,
                                                     const PrefillAttentionPlan& prefill);

// Learned rows as a paged cache of bf16: [rows, kv heads, dim] in pages of 64, the last one filled
// up with anything. One call computes attention to them with these lengths, page tables and the
// learned tile lists, another to the sequences' own keys; merge_states folds the two, learned rows
// first.
struct LearnedRowsCache {
  static constexpr int32_t kPageTokens = 64;
  int32_t num_pages = 0;
  std::vector<int32_t> page_table;  // [num_sequences, num_pages]
  std::vector<int32_t> kv_lengths;  // [num_sequences]
};
LearnedRowsCache MakeLearnedRowsCache(const sparse::Plan& plan);

// The device memory's bytes, to be copied to 256-byte aligned memory that BindTileLists is given.
// An error when the lists do not fit in.
Result<std::vector<std::byte>> PackTileLists(const DecodeTileLists& lists,
                                             const TileListRoom& room);
Result<std::vector<std::byte>> PackTileLists(const PrefillTileLists& lists,
                                             const TileListRoom& room);
void BindTileLists(const TileListRoom& room, const void* memory,
                   kernels::cuda::DecodeParams* params);
void BindTileLists(const TileListRoom& room, const void* memory,
                   kernels::cuda::PrefillParams* params);

}  // namespace fathom::ops
