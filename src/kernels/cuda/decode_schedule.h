#pragma once
// How decode work is divided: pure functions, the same on the host (tests, planners) and on the
// device (the Prepare kernel).
//
// The tiles of all sequences form one line of T tiles. It is cut into P = min(num_parts, T) parts
// of equal length; a part may end inside a sequence, so every SM reads the same number of bytes.
// Each stretch of one sequence inside one part (and inside one segment, when the split asks for
// segments) is an item; an item that is not its whole sequence leaves a partial result in a slot.
// With tile lists the line is made of what they visit, and "sequence" means list.
#include <cstdint>

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/host_device.h"

namespace fathom::kernels::cuda {

// What the line is made of, and what each counts for.
FATHOM_HOST_DEVICE inline int32_t DecodeLineSize(const DecodeParams& params) {
  return params.lists == nullptr ? params.num_sequences : params.num_lists;
}
FATHOM_HOST_DEVICE inline const int32_t* DecodeLengths(const DecodeParams& params) {
  return params.lists == nullptr ? params.kv_lengths : params.visited_tokens;
}

// Blocks that work on the same part: lists have their own kv heads.
FATHOM_HOST_DEVICE inline int32_t DecodeGroups(const DecodeParams& params) {
  return (params.lists == nullptr ? params.num_kv_heads : 1) * params.row_tiles;
}

// All heads of a kv head, or those of a list.
FATHOM_HOST_DEVICE inline DecodeList DecodeListAt(const DecodeParams& params, int32_t index,
                                                  int32_t kv_head) {
  if (params.lists != nullptr) return params.lists[index];
  DecodeList all;
  all.sequence = index;
  all.kv_head = kv_head;
  all.first_head = kv_head * params.group;
  all.num_heads = params.group;
  all.heads_inverse = params.group_inverse;
  return all;
}

FATHOM_HOST_DEVICE inline int32_t DecodeTiles(int32_t kv_tokens) {
  return kv_tokens / kDecodeTileTokens + (kv_tokens % kDecodeTileTokens != 0 ? 1 : 0);
}

// Tiles of one segment; more than the sequence has when the split does not ask for segments.
FATHOM_HOST_DEVICE inline int32_t DecodeSegmentTiles(const DecodeSplit& split, int32_t kv_tokens) {
  if (split.max_segments == 0) return INT32_MAX;
  const int64_t tiles = DecodeTiles(kv_tokens);
  int64_t segment = split.min_segment_tiles;
  while (segment * split.max_segments < tiles) segment *= 2;
  return static_cast<int32_t>(segment);
}

FATHOM_HOST_DEVICE inline int32_t DecodeSegments(const DecodeSplit& split, int32_t kv_tokens) {
  if (split.max_segments == 0) return 0;
  const int32_t segment = DecodeSegmentTiles(split, kv_tokens);
  return (DecodeTiles(kv_tokens) + segment - 1) / segment;
}

// The last sequence that starts at or before `tile` of the line; num_sequences when tile == T.
// prefix [num_sequences + 1]: tiles before each sequence, ending with T.
FATHOM_HOST_DEVICE inline int32_t DecodeSequenceAt(const int32_t* prefix, int32_t num_sequences,
                                                   int32_t tile) {
  int32_t low = 0;
  int32_t high = num_sequences;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (prefix[middle] <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Where part `part` of num_parts starts on the line: an even cut, moved back to a segment's start.
FATHOM_HOST_DEVICE inline int32_t DecodeCut(const DecodeSplit& split, const int32_t* prefix,
                                            const int32_t* kv_lengths, int32_t num_sequences,
                                            int32_t num_parts, int32_t part) {
  const int64_t total = prefix[num_sequences];
  const auto cut = static_cast<int32_t>(total * part / num_parts);
  if (split.max_segments == 0 || cut == total) return cut;
  const int32_t sequence = DecodeSequenceAt(prefix, num_sequences, cut);
  return cut - (cut - prefix[sequence]) % DecodeSegmentTiles(split, kv_lengths[sequence]);
}

// Parts to cut the line into. When all sequences are equally long, a few parts fewer may divide
// them evenly (whole sequences a part, or whole parts a sequence): fewer partial results, and no
// part that has to change sequence. At most an eighth of the parts is given up for it.
FATHOM_HOST_DEVICE inline int32_t DecodeUsedParts(int32_t total_tiles, int32_t num_sequences,
                                                  bool equal_lengths, int32_t num_parts) {
  const int32_t used = total_tiles < num_parts ? total_tiles : num_parts;
  if (!equal_lengths) return used;
  for (int32_t parts = used; parts > 0 && parts >= used - used / 8; --parts) {
    if (num_sequences % parts == 0 || parts % num_sequences == 0) return parts;
  }
  return used;
}

// prefix: tiles; segment_prefix: segments before each sequence (read only with segments). Its
// queries are left out.
FATHOM_HOST_DEVICE inline DecodePart MakeDecodePart(const DecodeSplit& split, const int32_t* prefix,
                                                    const int32_t* segment_prefix,
                                                    const int32_t* kv_lengths,
                                                    int32_t num_sequences, int32_t used,
                                                    int32_t part) {
  DecodePart result;
  if (part >= used) return result;
  const int32_t begin = DecodeCut(split, prefix, kv_lengths, num_sequences, used, part);
  const int32_t end = DecodeCut(split, prefix, kv_lengths, num_sequences, used, part + 1);
  if (begin == end) return result;
  const int32_t sequence = DecodeSequenceAt(prefix, num_sequences, begin);
  result.sequence = sequence;
  result.tile = begin - prefix[sequence];
  result.num_tiles = end - begin;
  result.kv_tokens = kv_lengths[sequence];
  result.slot =
      split.max_segments == 0
          ? part + sequence
          : segment_prefix[sequence] + result.tile / DecodeSegmentTiles(split, result.kv_tokens);
  return result;
}

FATHOM_HOST_DEVICE inline DecodeMerge MakeDecodeMerge(const DecodeSplit& split,
                                                      const int32_t* prefix,
                                                      const int32_t* segment_prefix,
                                                      int32_t num_sequences, int32_t used,
                                                      int32_t sequence) {
  const int64_t begin = prefix[sequence];
  const int64_t end = prefix[sequence + 1];
  if (begin == end) return {};
  if (split.max_segments != 0) {
    return {segment_prefix[sequence], segment_prefix[sequence + 1] - segment_prefix[sequence]};
  }
  const int64_t total = prefix[num_sequences];
  // The part that owns a tile: the largest p with floor(p * total / used) <= tile.
  const auto first = static_cast<int32_t>(((begin + 1) * used - 1) / total);
  const auto last = static_cast<int32_t>((end * used - 1) / total);
  return {first + sequence, last - first + 1};
}

// The first tile past the item that starts at `tile`, given `left` tiles of the part.
FATHOM_HOST_DEVICE inline int32_t DecodeItemEnd(const DecodeSplit& split, int32_t kv_tokens,
                                                int32_t tile, int32_t left) {
  const int32_t tiles = DecodeTiles(kv_tokens);
  int32_t end = tiles - tile < left ? tiles : tile + left;
  if (split.max_segments != 0) {
    const int32_t segment = DecodeSegmentTiles(split, kv_tokens);
    const int32_t segment_end = tile / segment * segment + segment;
    if (segment_end < end) end = segment_end;
  }
  return end;
}

}  // namespace fathom::kernels::cuda
