#include "ops/cuda/tile_lists.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

constexpr int64_t kAlignment = 256;
constexpr int kMaxDecodeQueries = 8;

int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Offsets of arrays laid out one behind the other.
class Offsets {
 public:
  template <class T>
  int64_t Take(int64_t count) {
    const int64_t at = total_;
    total_ += Align(count * static_cast<int64_t>(sizeof(T)));
    return at;
  }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

template <class T>
void Store(const std::vector<T>& values, int64_t at, std::vector<std::byte>* memory) {
  if (values.empty()) return;
  std::memcpy(memory->data() + at, values.data(), values.size() * sizeof(T));
}

Status CheckRoom(const TileListRoom& needs, const TileListRoom& room) {
  if (needs.lists <= room.lists && needs.tiles <= room.tiles && needs.masks <= room.masks) {
    return {};
  }
  return Err(Code::kResourceExhausted,
             "tile lists: {} lists, {} tiles, {} masks: there is room for {}, {}, {}", needs.lists,
             needs.tiles, needs.masks, room.lists, room.tiles, room.masks);
}

// Tiles and masks are found by 32-bit indices, of which masks share two bits with flags.
Status CheckIndices(const char* what, size_t tiles, size_t masks) {
  constexpr size_t kMaxTiles = std::numeric_limits<int32_t>::max();
  constexpr size_t kMaxMasks = cuda::kMaskOfRows;
  if (tiles <= kMaxTiles && masks <= kMaxMasks) return {};
  return Err(Code::kResourceExhausted,
             "{} tile lists: {} tiles and {} masks: expected at most {} and {} in one step", what,
             tiles, masks, kMaxTiles, kMaxMasks);
}

struct DecodeLayout {
  explicit DecodeLayout(const TileListRoom& room) {
    Offsets at;
    lists = at.Take<cuda::DecodeList>(room.lists);
    visited = at.Take<int32_t>(room.lists);
    tiles = at.Take<cuda::ListedTile>(room.tiles);
    masks = at.Take<uint64_t>(room.masks);
    total = at.total();
  }
  int64_t lists, visited, tiles, masks, total;
};

// The row's list without tiles.
cuda::DecodeList DecodeListOf(const sparse::Plan& plan, const sparse::TileRow& row,
                              const DecodeTileLists& lists) {
  const sparse::HeadRun& run = plan.runs[static_cast<size_t>(row.run)];
  cuda::DecodeList list;
  list.sequence = row.sequence;
  list.kv_head = run.kv_head;
  list.first_head = run.first_head;
  list.num_heads = run.num_heads;
  list.heads_inverse = ((1 << cuda::kGroupInverseShift) + run.num_heads - 1) / run.num_heads;
  list.first_tile = static_cast<int32_t>(lists.tiles.size());
  return list;
}

struct PrefillLayout {
  explicit PrefillLayout(const TileListRoom& room) {
    Offsets at;
    count = at.Take<int32_t>(1);
    lists = at.Take<cuda::PrefillList>(room.lists);
    tiles = at.Take<cuda::ListedTile>(room.tiles);
    masks = at.Take<std::array<uint64_t, 2>>(room.masks);
    total = at.total();
  }
  int64_t count, lists, tiles, masks, total;
};

Status CheckDecodeRows(const sparse::Plan& plan) {
  if (plan.shape.tile_keys != cuda::kDecodeTileTokens) {
    return Err(Code::kUnsupported, "decode tile lists of a plan for tiles of {} keys: expected {}",
               plan.shape.tile_keys, cuda::kDecodeTileTokens);
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const int32_t queries = plan.sequences[i].queries;
    if (queries > std::min(plan.shape.tile_queries, kMaxDecodeQueries)) {
      return Err(Code::kUnsupported,
                 "decode tile lists: sequence {} has {} queries, the plan tiles of {}: expected "
                 "tiles that hold all of a sequence's queries, and at most {} of them; more take "
                 "the prefill path",
                 i, queries, plan.shape.tile_queries, kMaxDecodeQueries);
    }
  }
  return {};
}

void AddList(const cuda::DecodeList& list, DecodeTileLists* lists) {
  lists->lists.push_back(list);
  lists->visited_tokens.push_back((static_cast<int32_t>(lists->tiles.size()) - list.first_tile) *
                                  cuda::kDecodeTileTokens);
}

// Farther than any two positions are apart; sums of it and a position fit.
constexpr int32_t kAllNear = (1 << 30) - 1;

Status CheckPrefillTiles(const sparse::Plan& plan, const PrefillAttentionPlan& prefill) {
  if (plan.shape.tile_queries == prefill.kernel.rows &&
      plan.shape.tile_keys == prefill.kernel.keys) {
    return {};
  }
  return Err(Code::kUnsupported,
             "prefill tile lists of a plan for tiles of {} queries x {} keys: {} has {} x {}",
             plan.shape.tile_queries, plan.shape.tile_keys, prefill.kernel.family,
             prefill.kernel.rows, prefill.kernel.keys);
}

// Adds the masks of a row's tiles, one for all query rows of a tile where they are alike.
class PrefillMasks {
 public:
  PrefillMasks(const sparse::Plan& plan, const sparse::TileRow& row, PrefillTileLists* made)
      : plan_(plan),
        row_(row),
        head_(plan.runs[static_cast<size_t>(row.run)].first_head),
        made_(*made) {}

  // ListedTile::mask of a partial tile.
  int32_t Of(int32_t key) {
    const sparse::HeadRole role = plan_.PolicyOf(head_).role;
    if (role == sparse::HeadRole::kBlocks) return OfBlocks(key);
    if (role == sparse::HeadRole::kLocal) return OfAnchors(key);
    return cuda::kMaskByPosition;
  }

 private:
  using Mask = std::array<uint64_t, 2>;

  int32_t OfAnchors(int32_t key) {
    const std::span<const int32_t> anchors = plan_.AnchorsOf(row_.sequence, head_);
    Mask mask{};
    for (auto at = std::lower_bound(anchors.begin(), anchors.end(), key);
         at != anchors.end() && *at < key + plan_.shape.tile_keys; ++at) {
      mask[static_cast<size_t>(*at - key) / 64] |= uint64_t{1} << (*at - key) % 64;
    }
    if (mask == Mask{}) return cuda::kMaskByPosition;
    made_.masks.push_back(mask);
    return static_cast<int32_t>(made_.masks.size() - 1);
  }

  int32_t OfBlocks(int32_t key) {
    const auto first = static_cast<int32_t>(made_.masks.size());
    bool alike = true;
    for (int32_t query = 0; query < row_.num_queries; ++query) {
      Mask mask{};
      // A block of which a query does not see the first key is beyond the causal mask or the end.
      for (int32_t block = 0; block < plan_.shape.tile_keys / sparse::kBlockTokens; ++block) {
        if (plan_.Sees(row_.sequence, head_, row_.first_query + query,
                       key + block * sparse::kBlockTokens)) {
          mask[static_cast<size_t>(block)] = ~uint64_t{0};
        }
      }
      made_.masks.push_back(mask);
      alike = alike && mask == made_.masks[static_cast<size_t>(first)];
    }
    if (alike) {
      made_.masks.resize(static_cast<size_t>(first) + 1);
      return first;
    }
    // Query rows that are not there are read, too.
    made_.masks.resize(static_cast<size_t>(first) + static_cast<size_t>(plan_.shape.tile_queries));
    return first | cuda::kMaskOfRows;
  }

  const sparse::Plan& plan_;
  const sparse::TileRow& row_;
  int32_t head_;
  PrefillTileLists& made_;
};

// A list for each head of the row, with the tiles from first_tile on.
void AddLists(const sparse::Plan& plan, const sparse::TileRow& row, int32_t first_tile,
              PrefillTileLists* made) {
  const sparse::HeadRun& run = plan.runs[static_cast<size_t>(row.run)];
  const sparse::HeadPolicy& policy = plan.PolicyOf(run.first_head);
  const bool local = policy.role == sparse::HeadRole::kLocal;
  const auto count = static_cast<int32_t>(made->tiles.size()) - first_tile;
  for (int32_t head = run.first_head; head < run.first_head + run.num_heads; ++head) {
    made->lists.push_back({.sequence = row.sequence,
                           .row = row.first_query,
                           .head = head,
                           .window = local ? std::min(policy.window, kAllNear)
                                     : policy.role == sparse::HeadRole::kBlocks ? -1
                                                                                : kAllNear,
                           .anchors = local ? policy.first_anchors : 0,
                           .first_tile = first_tile,
                           .num_tiles = count,
                           .last_tile = count > 0 ? made->tiles.back().tile : 0});
  }
}

// The order in which blocks take them: section after section of heads, in each the longest first;
// then, of all heads, those that are short beside what a block does, to fill up what the last
// section leaves uneven.
void Order(const PrefillAttentionPlan& prefill, PrefillTileLists* made) {
  constexpr int64_t kShort = 16;  // of them make an even share
  int64_t visits = 0;
  for (const cuda::PrefillList& list : made->lists) visits += list.num_tiles;
  const int64_t share = visits / prefill.num_blocks;
  const auto key = [&](const cuda::PrefillList& list) {
    const bool is_short = list.num_tiles * kShort <= share;
    return std::tuple(is_short, is_short ? 0 : list.head / prefill.section_heads, -list.num_tiles);
  };
  std::stable_sort(
      made->lists.begin(), made->lists.end(),
      [&key](const cuda::PrefillList& a, const cuda::PrefillList& b) { return key(a) < key(b); });
}

}  // namespace

TileListRoom DecodeTileLists::Needs() const {
  return {std::ssize(lists), std::ssize(tiles), std::ssize(masks)};
}

int32_t DecodeTileLists::LongestTokens() const {
  int32_t longest = 1;
  for (const int32_t tokens : visited_tokens) longest = std::max(longest, tokens);
  return longest;
}

Result<DecodeTileLists> MakeDecodeTileLists(const sparse::Plan& plan) {
  FATHOM_TRY(CheckDecodeRows(plan));
  DecodeTileLists made;
  for (const sparse::TileRow& row : plan.rows) {
    const cuda::DecodeList list = DecodeListOf(plan, row, made);
    for (const sparse::Tile& tile : plan.TilesOf(row)) {
      cuda::ListedTile listed{tile.key / cuda::kDecodeTileTokens, cuda::kNoMask};
      if (tile.partial) {
        listed.mask = static_cast<int32_t>(made.masks.size());
        for (int32_t query = 0; query < row.num_queries; ++query) {
          uint64_t bits = 0;
          for (int32_t i = 0; i < cuda::kDecodeTileTokens; ++i) {
            const bool seen = plan.Sees(row.sequence, list.first_head, query, tile.key + i);
            bits |= uint64_t{seen} << i;
          }
          made.masks.push_back(bits);
        }
      }
      made.tiles.push_back(listed);
      FATHOM_TRY(CheckIndices("decode", made.tiles.size(), made.masks.size()));
    }
    AddList(list, &made);
  }
  return made;
}

Result<DecodeTileLists> MakeLearnedDecodeTileLists(const sparse::Plan& plan) {
  FATHOM_TRY(CheckDecodeRows(plan));
  DecodeTileLists made;
  const int32_t whole = plan.policy.learned_rows / cuda::kDecodeTileTokens;
  const int32_t rest = plan.policy.learned_rows % cuda::kDecodeTileTokens;
  // One mask for all: of the last tile.
  if (rest > 0) made.masks.assign(kMaxDecodeQueries, (uint64_t{1} << rest) - 1);
  for (const sparse::TileRow& row : plan.rows) {
    const cuda::DecodeList list = DecodeListOf(plan, row, made);
    if (plan.PolicyOf(list.first_head).role != sparse::HeadRole::kOff) {
      for (int32_t tile = 0; tile < whole; ++tile) made.tiles.push_back({tile, cuda::kNoMask});
      if (rest > 0) made.tiles.push_back({whole, 0});
    }
    AddList(list, &made);
  }
  FATHOM_TRY(CheckIndices("decode", made.tiles.size(), made.masks.size()));
  return made;
}

TileListRoom PrefillTileLists::Needs() const {
  return {std::ssize(lists), std::ssize(tiles), std::ssize(masks)};
}

Result<PrefillTileLists> MakePrefillTileLists(const sparse::Plan& plan,
                                              const PrefillAttentionPlan& prefill) {
  FATHOM_TRY(CheckPrefillTiles(plan, prefill));
  PrefillTileLists made;
  for (const sparse::TileRow& row : plan.rows) {
    const auto first_tile = static_cast<int32_t>(made.tiles.size());
    PrefillMasks masks(plan, row, &made);
    for (const sparse::Tile& tile : plan.TilesOf(row)) {
      made.tiles.push_back(
          {tile.key / plan.shape.tile_keys, tile.partial ? masks.Of(tile.key) : cuda::kNoMask});
    }
    FATHOM_TRY(CheckIndices("prefill", made.tiles.size(), made.masks.size()));
    AddLists(plan, row, first_tile, &made);
  }
  Order(prefill, &made);
  return made;
}

Result<PrefillTileLists> MakeLearnedPrefillTileLists(const sparse::Plan& plan,
                                                     const PrefillAttentionPlan& prefill) {
  FATHOM_TRY(CheckPrefillTiles(plan, prefill));
  PrefillTileLists made;
  const int32_t keys = plan.shape.tile_keys;
  for (const sparse::TileRow& row : plan.rows) {
    const auto first_tile = static_cast<int32_t>(made.tiles.size());
    const int32_t head = plan.runs[static_cast<size_t>(row.run)].first_head;
    const bool off = plan.PolicyOf(head).role == sparse::HeadRole::kOff;
    for (int32_t key = 0; !off && key < plan.policy.learned_rows; key += keys) {
      const bool whole = key + keys <= plan.policy.learned_rows;
      made.tiles.push_back({key / keys, whole ? cuda::kNoMask : cuda::kMaskByPosition});
    }
    FATHOM_TRY(CheckIndices("prefill", made.tiles.size(), 0));
    AddLists(plan, row, first_tile, &made);
  }
  for (cuda::PrefillList& list : made.lists) list.window = kAllNear;
  Order(prefill, &made);
  return made;
}

LearnedRowsCache MakeLearnedRowsCache(const sparse::Plan& plan) {
  LearnedRowsCache cache;
  const int32_t rows = plan.policy.learned_rows;
  cache.num_pages = (rows + LearnedRowsCache::kPageTokens - 1) / LearnedRowsCache::kPageTokens;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    for (int32_t page = 0; page < cache.num_pages; ++page) cache.page_table.push_back(page);
    cache.kv_lengths.push_back(rows);
  }
  return cache;
}

Result<std::vector<std::byte>> PackTileLists(const DecodeTileLists& lists,
                                             const TileListRoom& room) {
  FATHOM_TRY(CheckRoom(lists.Needs(), room));
  const DecodeLayout layout(room);
  // Lists that are not there count for nothing: zeros.
  std::vector<std::byte> memory(static_cast<size_t>(layout.total));
  Store(lists.lists, layout.lists, &memory);
  Store(lists.visited_tokens, layout.visited, &memory);
  Store(lists.tiles, layout.tiles, &memory);
  Store(lists.masks, layout.masks, &memory);
  return memory;
}

Result<std::vector<std::byte>> PackTileLists(const PrefillTileLists& lists,
                                             const TileListRoom& room) {
  FATHOM_TRY(CheckRoom(lists.Needs(), room));
  const PrefillLayout layout(room);
  std::vector<std::byte> memory(static_cast<size_t>(layout.total));
  Store(std::vector{static_cast<int32_t>(lists.lists.size())}, layout.count, &memory);
  Store(lists.lists, layout.lists, &memory);
  Store(lists.tiles, layout.tiles, &memory);
  Store(lists.masks, layout.masks, &memory);
  return memory;
}

void BindTileLists(const TileListRoom& room, const void* memory, cuda::DecodeParams* params) {
  const DecodeLayout layout(room);
  const auto* base = static_cast<const char*>(memory);
  params->lists = reinterpret_cast<const cuda::DecodeList*>(base + layout.lists);
  params->visited_tokens = reinterpret_cast<const int32_t*>(base + layout.visited);
  params->listed = reinterpret_cast<const cuda::ListedTile*>(base + layout.tiles);
  params->masks = reinterpret_cast<const uint64_t*>(base + layout.masks);
  params->num_lists = static_cast<int32_t>(room.lists);
}

void BindTileLists(const TileListRoom& room, const void* memory, cuda::PrefillParams* params) {
  const PrefillLayout layout(room);
  const auto* base = static_cast<const char*>(memory);
  params->num_lists = reinterpret_cast<const int32_t*>(base + layout.count);
  params->lists = reinterpret_cast<const cuda::PrefillList*>(base + layout.lists);
  params->listed = reinterpret_cast<const cuda::ListedTile*>(base + layout.tiles);
  params->masks = reinterpret_cast<const uint32_t*>(base + layout.masks);
}

}  // namespace fathom::ops
