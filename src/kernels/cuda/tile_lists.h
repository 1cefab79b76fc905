#pragma once
// Lists of key tiles as sparse kernels read them from device memory. POD, no CUDA headers. They are
// made by ops/cuda/tile_lists.h.
#include <cstdint>

namespace fathom::kernels::cuda {

// What has to be masked in a listed tile; 0 or more: where its mask is.
inline constexpr int32_t kNoMask = -1;           // nothing: every pair is seen
inline constexpr int32_t kMaskByPosition = -2;   // prefill: what position, window and length say
inline constexpr int32_t kMaskOfRows = 1 << 30;  // prefill, added: a mask for each query row

struct alignas(8) ListedTile {
  int32_t tile = 0;  // its first key, divided by the keys of a tile
  int32_t mask = kNoMask;
};

// Decode: query heads of one kv head that visit the same tiles of 64 keys in one sequence. A mask
// is 64 bits for each query token of the sequence, bit i for key i of the tile.
struct DecodeList {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;      // 0: no list
  int32_t heads_inverse = 0;  // ceil(2^kGroupInverseShift / num_heads)
  int32_t first_tile = 0;
  int32_t unused[2] = {};
};

// Prefill: a tile of query rows of one head. Of a masked tile row p sees key k (besides what causal
// masking and the length say) when |p - k| <= window, k < anchors, or its mask says so: 128 bits,
// bit i for key i of the tile, one mask for all rows or, with kMaskOfRows, one for each.
struct PrefillList {
  int32_t sequence = 0;
  int32_t row = 0;  // first of the tile, in its sequence
  int32_t head = 0;
  int32_t window = 0;  // below 0: nothing is near
  int32_t anchors = 0;
  int32_t first_tile = 0;
  int32_t num_tiles = 0;
  int32_t last_tile = 0;  // `tile` of the last one
};

}  // namespace fathom::kernels::cuda
