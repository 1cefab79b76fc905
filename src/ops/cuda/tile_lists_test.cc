#include "ops/cuda/tile_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "ops/random_sparse_policy.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;
using sparse::HeadRole;
using ::testing::HasSubstr;

constexpr GpuLimits kH200 = {
    .compute_major = 9, .compute_minor = 0, .num_sms = 132, .shared_bytes_per_block = 232448};

PrefillAttentionPlan PlanPrefill(int heads, int kv_heads, int dim) {
  return PlanPrefillAttention({.num_sequences = 3,
                               .num_tokens = 1200,
                               .max_kv_tokens = 400,
                               .num_heads = heads,
                               .num_kv_heads = kv_heads,
                               .head_dim_qk = dim,
                               .head_dim_v = dim,
                               .page_tokens = 64,
                               .tile_lists = true},
                              {}, kH200)
      .value();
}

// What a decode kernel computes with: the tiles of each (sequence, head) and their bits.
void CheckDecodeLists(const sparse::Plan& plan, const DecodeTileLists& made) {
  ASSERT_EQ(made.lists.size(), made.visited_tokens.size());
  std::set<std::pair<int, int>> covered;
  for (size_t i = 0; i < made.lists.size(); ++i) {
    const cuda::DecodeList& list = made.lists[i];
    const sparse::Sequence& s = plan.sequences[static_cast<size_t>(list.sequence)];
    for (int row = 0; row < 8 * list.num_heads; ++row) {
      ASSERT_EQ(row * list.heads_inverse >> cuda::kGroupInverseShift, row / list.num_heads);
    }
    std::map<int, int> masks;  // by tile
    for (int t = 0; t < made.visited_tokens[i] / 64; ++t) {
      const cuda::ListedTile& tile = made.tiles[static_cast<size_t>(list.first_tile + t)];
      ASSERT_TRUE(t == 0 ||
                  tile.tile > made.tiles[static_cast<size_t>(list.first_tile + t - 1)].tile);
      masks[tile.tile] = tile.mask;
    }
    for (int h = list.first_head; h < list.first_head + list.num_heads; ++h) {
      ASSERT_EQ(h / (plan.shape.num_heads / plan.shape.num_kv_heads), list.kv_head);
      ASSERT_TRUE(covered.insert({list.sequence, h}).second);
      for (int q = 0; q < s.queries; ++q) {
        for (int key = 0; key < (s.keys + 63) / 64 * 64; ++key) {
          const auto found = masks.find(key / 64);
          const bool seen = found != masks.end() &&
                            (found->second == cuda::kNoMask ||
                             (made.masks[static_cast<size_t>(found->second + q)] >> key % 64 & 1));
          ASSERT_EQ(seen, plan.Sees(list.sequence, h, q, key)) << "query " << q << " key " << key;
        }
      }
    }
  }
  size_t with_queries = 0;
  for (const sparse::Sequence& s : plan.sequences) with_queries += s.queries > 0 ? 1 : 0;
  ASSERT_EQ(covered.size(), with_queries * static_cast<size_t>(plan.shape.num_heads));
}

TEST(DecodeTileLists, SayWhatThePlanSees) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    sparse::Random random(seed);
    sparse::Shape shape{.num_kv_heads = 1 + random.Below(2), .tile_queries = 8};
    shape.num_heads = shape.num_kv_heads * (1 + random.Below(3));
    const auto sequences = sparse::RandomSequences(random, 8);
    const auto plan =
        sparse::MakePlan(shape, sparse::RandomPolicy(random, shape, sequences), sequences);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto made = MakeDecodeTileLists(*plan);
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_NO_FATAL_FAILURE(CheckDecodeLists(*plan, *made));
  }
}

// The kernel's rule for a pair (kernels/cuda/tile_lists.h).
bool PrefillSees(const sparse::Plan& plan, const PrefillTileLists& made,
                 const cuda::PrefillList& list, int row, int key) {
  const sparse::Sequence& s = plan.sequences[static_cast<size_t>(list.sequence)];
  const int position = s.keys - s.queries + list.row + row;
  for (int t = 0; t < list.num_tiles; ++t) {
    const cuda::ListedTile& tile = made.tiles[static_cast<size_t>(list.first_tile + t)];
    if (tile.tile != key / plan.shape.tile_keys) continue;
    if (tile.mask == cuda::kNoMask) return true;
    if (key >= s.keys || (plan.policy.causal && key > position)) return false;
    if (std::abs(position - key) <= list.window || key < list.anchors) return true;
    if (tile.mask < 0) return false;
    const bool of_rows = (tile.mask & cuda::kMaskOfRows) != 0;
    const auto& mask = made.masks[static_cast<size_t>((tile.mask & (cuda::kMaskOfRows - 1)) +
                                                      (of_rows ? row : 0))];
    const int bit = key % plan.shape.tile_keys;
    return (mask[static_cast<size_t>(bit) / 64] >> bit % 64 & 1) != 0;
  }
  return false;
}

TEST(PrefillTileLists, SayWhatThePlanSees) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    sparse::Random random(seed);
    sparse::Shape shape{.num_kv_heads = 1 + random.Below(2)};
    shape.num_heads = shape.num_kv_heads * (1 + random.Below(3));
    const PrefillAttentionPlan prefill =
        PlanPrefill(shape.num_heads, shape.num_kv_heads, random.OneOf({64, 128}));
    shape.tile_queries = prefill.kernel.rows;
    shape.tile_keys = prefill.kernel.keys;
    const auto sequences = sparse::RandomSequences(random, 400);
    const auto plan =
        sparse::MakePlan(shape, sparse::RandomPolicy(random, shape, sequences), sequences);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto made = MakePrefillTileLists(*plan, prefill);
    ASSERT_TRUE(made) << made.error().message;
    std::set<std::tuple<int, int, int>> covered;  // sequence, head, query
    for (const cuda::PrefillList& list : made->lists) {
      const sparse::Sequence& s = plan->sequences[static_cast<size_t>(list.sequence)];
      if (list.num_tiles > 0) {
        ASSERT_EQ(made->tiles[static_cast<size_t>(list.first_tile + list.num_tiles - 1)].tile,
                  list.last_tile);
      }
      for (int row = 0; row < std::min(shape.tile_queries, s.queries - list.row); ++row) {
        ASSERT_TRUE(covered.insert({list.sequence, list.head, list.row + row}).second);
        for (int key = 0; key < s.keys; ++key) {
          ASSERT_EQ(PrefillSees(*plan, *made, list, row, key),
                    plan->Sees(list.sequence, list.head, list.row + row, key))
              << "query " << list.row + row << " key " << key;
        }
      }
    }
    size_t expected = 0;
    for (const sparse::Sequence& s : sequences) {
      expected += static_cast<size_t>(s.queries) * static_cast<size_t>(shape.num_heads);
    }
    ASSERT_EQ(covered.size(), expected);
  }
}

// Longest first among the heads of a section; sections one after the other, then short lists.
TEST(PrefillTileLists, AreOrderedForBalance) {
  PrefillAttentionPlan prefill = PlanPrefill(4, 4, 128);
  prefill.section_heads = 2;
  const sparse::Policy policy{
      .heads = {
          {HeadRole::kOff}, {HeadRole::kGlobal}, {HeadRole::kLocal, 10}, {HeadRole::kGlobal}}};
  const auto plan = sparse::MakePlan({.num_heads = 4,
                                      .num_kv_heads = 4,
                                      .tile_queries = prefill.kernel.rows,
                                      .tile_keys = prefill.kernel.keys},
                                     policy, {{400, 400}});
  ASSERT_TRUE(plan);
  const auto made = MakePrefillTileLists(*plan, prefill);
  ASSERT_TRUE(made);
  ASSERT_EQ(made->lists.size(), 16u);
  prefill.num_blocks = 1;  // 27 tiles: one is short
  const auto for_one = MakePrefillTileLists(*plan, prefill);
  ASSERT_TRUE(for_one);
  std::vector<std::pair<int, int>> order;  // section, tiles
  for (const cuda::PrefillList& list : for_one->lists) {
    order.emplace_back(list.head / 2, list.num_tiles);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(
                         std::pair{0, 4}, std::pair{0, 3}, std::pair{0, 2}, std::pair{1, 4},
                         std::pair{1, 3}, std::pair{1, 2}, std::pair{1, 2}, std::pair{1, 2},
                         std::pair{1, 2}, std::pair{0, 1}, std::pair{1, 1}, std::pair{1, 1},
                         std::pair{0, 0}, std::pair{0, 0}, std::pair{0, 0}, std::pair{0, 0}));
}

// Every head that is not off sees all learned rows, whatever else it sees.
TEST(LearnedTileLists, AreSeenByAllHeadsThatAreNotOff) {
  const PrefillAttentionPlan prefill = PlanPrefill(4, 2, 128);
  sparse::Policy policy{
      .heads = {{HeadRole::kLocal, 3}, {HeadRole::kOff}, {HeadRole::kGlobal}, {HeadRole::kGlobal}}};
  for (const int rows : {1, 63, 64, 128, 200, 256}) {
    policy.learned_rows = rows;
    sparse::Shape shape{.num_heads = 4, .num_kv_heads = 2, .tile_queries = 8};
    const auto plan = sparse::MakePlan(shape, policy, {{3, 100}, {1, 7}});
    ASSERT_TRUE(plan);
    const auto decode = MakeLearnedDecodeTileLists(*plan);
    ASSERT_TRUE(decode);
    ASSERT_EQ(decode->lists.size(), 6u);  // three runs of heads in each sequence
    for (size_t i = 0; i < decode->lists.size(); ++i) {
      const cuda::DecodeList& list = decode->lists[i];
      const bool off = list.first_head == 1;
      int seen = 0;
      for (int t = 0; t < decode->visited_tokens[i] / 64; ++t) {
        const cuda::ListedTile& tile = decode->tiles[static_cast<size_t>(list.first_tile + t)];
        EXPECT_EQ(tile.tile, t);
        seen += tile.mask == cuda::kNoMask
                    ? 64
                    : __builtin_popcountll(decode->masks[static_cast<size_t>(tile.mask + 7)]);
      }
      EXPECT_EQ(seen, off ? 0 : rows);
    }
    shape.tile_queries = prefill.kernel.rows;
    shape.tile_keys = prefill.kernel.keys;
    const auto chunks = sparse::MakePlan(shape, policy, {{300, 300}});
    ASSERT_TRUE(chunks);
    const auto made = MakeLearnedPrefillTileLists(*chunks, prefill);
    ASSERT_TRUE(made);
    for (const cuda::PrefillList& list : made->lists) {
      EXPECT_EQ(list.num_tiles, list.head == 1 ? 0 : (rows + 127) / 128);
      EXPECT_GE(list.window, 1 << 29);
    }
    const LearnedRowsCache cache = MakeLearnedRowsCache(*plan);
    EXPECT_EQ(cache.num_pages, (rows + 63) / 64);
    EXPECT_EQ(cache.kv_lengths, std::vector<int32_t>(2, rows));
    EXPECT_EQ(cache.page_table.size(), 2u * static_cast<size_t>(cache.num_pages));
  }
}

TEST(PackTileLists, KeepsItsPlacesInARoom) {
  const auto plan = sparse::MakePlan({.num_heads = 2, .num_kv_heads = 1, .tile_queries = 8},
                                     {.heads = {{HeadRole::kLocal, 10}}}, {{1, 300}, {2, 64}});
  ASSERT_TRUE(plan);
  const auto made = MakeDecodeTileLists(*plan);
  ASSERT_TRUE(made);
  const TileListRoom room{.lists = 5, .tiles = 40, .masks = 16};
  const auto memory = PackTileLists(*made, room);
  ASSERT_TRUE(memory) << memory.error().message;
  cuda::DecodeParams params;
  BindTileLists(room, memory->data(), &params);
  EXPECT_EQ(params.num_lists, 5);
  const auto* base = memory->data();
  const auto at = [base, &memory](const void* pointer, size_t bytes) {
    const auto offset = static_cast<const std::byte*>(pointer) - base;
    EXPECT_EQ(offset % 256, 0);
    EXPECT_LE(static_cast<size_t>(offset) + bytes, memory->size());
  };
  at(params.lists, 5 * sizeof(cuda::DecodeList));
  at(params.visited_tokens, 5 * 4);
  at(params.listed, 40 * sizeof(cuda::ListedTile));
  at(params.masks, 16 * 8);
  for (int i = 2; i < 5; ++i) {  // lists that are not there
    EXPECT_EQ(params.visited_tokens[i], 0);
    EXPECT_EQ(params.lists[i].num_heads, 0);
  }
  EXPECT_EQ(
      std::memcmp(params.listed, made->tiles.data(), made->tiles.size() * sizeof(cuda::ListedTile)),
      0);
  const auto full = PackTileLists(*made, {.lists = 1, .tiles = 40, .masks = 16});
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("2 lists"));
  EXPECT_THAT(full.error().message, HasSubstr("room for 1"));
}

TEST(TileLists, RefuseWhatNoKernelRuns) {
  const sparse::Policy policy{.heads = {{HeadRole::kGlobal}}};
  auto plan = sparse::MakePlan(
      {.num_heads = 2, .num_kv_heads = 1, .tile_queries = 8, .tile_keys = 128}, policy, {{1, 300}});
  EXPECT_THAT(MakeDecodeTileLists(*plan).error().message,
              HasSubstr("tiles of 128 keys: expected 64"));
  plan =
      sparse::MakePlan({.num_heads = 2, .num_kv_heads = 1, .tile_queries = 16}, policy, {{9, 300}});
  EXPECT_THAT(MakeDecodeTileLists(*plan).error().message, HasSubstr("sequence 0 has 9 queries"));
  plan =
      sparse::MakePlan({.num_heads = 2, .num_kv_heads = 1, .tile_queries = 1}, policy, {{2, 300}});
  EXPECT_THAT(MakeLearnedDecodeTileLists(*plan).error().message, HasSubstr("tiles of 1"));
  EXPECT_THAT(MakePrefillTileLists(*plan, PlanPrefill(2, 1, 128)).error().message,
              HasSubstr("d128 has 128 x 128"));
}

}  // namespace
}  // namespace fathom::ops
