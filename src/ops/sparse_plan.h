#pragma once
// Which tiles of keys each tile of queries has to visit under a sparse mask, so that a kernel never
// loads a tile whose pairs are all masked. Pure host functions; the CPU op
// (ops/sparse_attention.h) executes the lists.
//
// A mask is made of what each query head may see:
//   global  all keys
//   local   keys at most `window` from the query, the first `first_anchors` positions, and a list
//           of anchor positions (of a sequence, or of each sequence and head)
//   blocks  for each query a list of key blocks of 64 (per query or run of queries, and per head)
//   off     nothing: the head is routed off and its output is zero
// Causal masking comes on top. `learned_rows` extra key/value rows, which belong to the layer and
// not to a sequence, are seen by every query of every head that is not off.
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace fathom::ops::sparse {

inline constexpr int32_t kBlockTokens = 64;
inline constexpr int32_t kMaxLearnedRows = 256;  // one span

enum class HeadRole : uint8_t { kGlobal, kLocal, kBlocks, kOff };

struct HeadPolicy {
  HeadRole role = HeadRole::kGlobal;
  int32_t window = 0;
  int32_t first_anchors = 0;

  bool operator==(const HeadPolicy&) const = default;
};

// Lists one behind the other.
struct Lists {
  std::vector<int32_t> values;
  std::vector<int64_t> starts = {0};

  void Add(std::span<const int32_t> list);
  int64_t size() const { return static_cast<int64_t>(starts.size()) - 1; }
  std::span<const int32_t> At(int64_t i) const;
};

struct Sequence {
  int32_t queries = 0;  // the last ones of its keys
  int32_t keys = 0;
};

struct Policy {
  bool causal = true;
  std::vector<HeadPolicy> heads;  // one for each query head, or one for all
  // Positions, increasing. Empty, a list for each sequence, or for each (sequence, head).
  Lists anchors;
  // Key blocks, increasing: block b holds keys [64 b, 64 b + 64). Sequence after sequence; in it,
  // head after head when `blocks_per_head`; in that, one list for each `queries_per_list` queries,
  // counted from the sequence's first query.
  Lists blocks;
  bool blocks_per_head = false;
  int32_t queries_per_list = 1;
  int32_t learned_rows = 0;
};

struct Shape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t tile_queries = 0;  // query tokens of a tile of rows
  int32_t tile_keys = 64;    // 64, 128 or 256
};

// Query heads of one kv head that see the same keys: one tile of keys serves them all.
struct HeadRun {
  int32_t kv_head = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;
};

struct Tile {
  int32_t key = 0;       // its first key, a multiple of tile_keys
  bool partial = false;  // some pair is masked, or the tile reaches past the last key
};

// A tile of rows and the tiles of keys that it visits, by increasing position.
struct TileRow {
  int32_t sequence = 0;
  int32_t run = 0;
  int32_t first_query = 0;  // of the sequence's queries
  int32_t num_queries = 0;
  int64_t begin = 0;  // [begin, end) of `tiles`
  int64_t end = 0;
};

struct Plan {
  Shape shape;
  Policy policy;
  std::vector<Sequence> sequences;
  std::vector<HeadRun> runs;
  std::vector<TileRow> rows;
  std::vector<Tile> tiles;
  std::vector<int64_t> first_block_list;  // of each sequence, in policy.blocks

  std::span<const Tile> TilesOf(const TileRow& row) const;
  const HeadPolicy& PolicyOf(int32_t head) const;
  // Anchor positions of a head in a sequence, besides its first ones; increasing.
  std::span<const int32_t> AnchorsOf(int32_t sequence, int32_t head) const;
  // Whether the query (of the sequence's queries) of a head sees the key.
  bool Sees(int32_t sequence, int32_t head, int32_t query, int32_t key) const;
  int64_t NumPartial() const;
  // Tiles that a kernel without lists would visit: all, or all up to the diagonal.
  int64_t DenseTiles() const;
};

// Errors name the list or head, what was found and what is legal.
Result<Plan> MakePlan(const Shape& shape, Policy policy, std::vector<Sequence> sequences);

}  // namespace fathom::ops::sparse
