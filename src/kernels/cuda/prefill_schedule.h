#pragma once
// Which key tiles a tile of queries visits: pure functions, the same on the host and the device.
#include <cstdint>

#include "kernels/cuda/host_device.h"
#include "kernels/cuda/prefill_params.h"

namespace fathom::kernels::cuda {

inline constexpr int kPrefillTileKeys = 128;

// Visit i of `count` is tile i while i < anchors, then tile i + skipped.
struct PrefillTiles {
  int32_t count = 0;
  int32_t anchors = 0;
  int32_t skipped = 0;
};

// Position of a sequence's first query, counted from the first key.
FATHOM_HOST_DEVICE inline int PrefillFirstPosition(const PrefillParams& params, int sequence,
                                                   int queries) {
  return (params.causal_lengths != nullptr ? params.causal_lengths : params.kv_lengths)[sequence] -
         queries;
}

// Of rows [row, row + rows) of a sequence whose first query is at `position`.
FATHOM_HOST_DEVICE inline PrefillTiles PrefillTilesOf(const PrefillParams& params, int kv_tokens,
                                                      int position, int queries, int row, int rows,
                                                      int tile_keys = kPrefillTileKeys) {
  int keys = kv_tokens;
  if (params.causal) {
    const int end = position + (row + rows < queries ? row + rows : queries);
    if (end < keys) keys = end;
  }
  PrefillTiles tiles;
  if (keys <= 0) return tiles;
  tiles.count = (keys + tile_keys - 1) / tile_keys;
  const int64_t first_visible = int64_t{position} + row - params.window;
  if (!params.causal || first_visible <= 0) return tiles;
  const auto window_tile = static_cast<int32_t>(first_visible / tile_keys);
  const int32_t anchor_tiles = (params.anchors + tile_keys - 1) / tile_keys;
  tiles.anchors = anchor_tiles < window_tile ? anchor_tiles : window_tile;
  tiles.skipped = window_tile - tiles.anchors;
  tiles.count -= tiles.skipped;
  return tiles;
}

}  // namespace fathom::kernels::cuda
