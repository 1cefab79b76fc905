#include "ops/sparse_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/balance.h"
#include "ops/random_sparse_policy.h"

namespace fathom::ops::sparse {
namespace {

using ::testing::HasSubstr;

// The mask by its definition, from the policy alone.
class BruteForce {
 public:
  BruteForce(const Shape& shape, const Policy& policy, const std::vector<Sequence>& sequences)
      : shape_(shape), policy_(policy), sequences_(sequences) {}

  bool Sees(int sequence, int head, int query, int key) const {
    const Sequence& s = sequences_[static_cast<size_t>(sequence)];
    const int position = s.keys - s.queries + query;
    if (key >= s.keys || (policy_.causal && key > position)) return false;
    const HeadPolicy& mine =
        policy_.heads[policy_.heads.size() == 1 ? 0 : static_cast<size_t>(head)];
    if (mine.role == HeadRole::kGlobal) return true;
    if (mine.role == HeadRole::kOff) return false;
    if (mine.role == HeadRole::kLocal) {
      if (std::abs(position - key) <= mine.window || key < mine.first_anchors) return true;
      if (policy_.anchors.size() == 0) return false;
      const bool per_head = policy_.anchors.size() != static_cast<int64_t>(sequences_.size());
      const auto list =
          policy_.anchors.At(per_head ? sequence * shape_.num_heads + head : sequence);
      return std::find(list.begin(), list.end(), key) != list.end();
    }
    int64_t at = 0;
    const auto lists = [this](const Sequence& of) {
      return (of.queries + policy_.queries_per_list - 1) / policy_.queries_per_list;
    };
    for (int i = 0; i < sequence; ++i) {
      at += lists(sequences_[static_cast<size_t>(i)]) *
            (policy_.blocks_per_head ? shape_.num_heads : 1);
    }
    at += (policy_.blocks_per_head ? head * lists(s) : 0) + query / policy_.queries_per_list;
    const auto list = policy_.blocks.At(at);
    return std::find(list.begin(), list.end(), key / 64) != list.end();
  }

 private:
  const Shape& shape_;
  const Policy& policy_;
  const std::vector<Sequence>& sequences_;
};

// Every unmasked pair is in exactly one listed tile, no listed tile is fully masked, `partial` is
// exact, tiles come in order, and every query of every head has one row.
void CheckPlan(const Plan& plan, const BruteForce& mask) {
  std::set<std::tuple<int, int, int>> covered;  // sequence, head, query
  for (const TileRow& row : plan.rows) {
    const HeadRun& run = plan.runs[static_cast<size_t>(row.run)];
    const int keys = plan.sequences[static_cast<size_t>(row.sequence)].keys;
    int last = -1;
    std::vector<int> times(static_cast<size_t>(keys) + 256, 0);
    for (const Tile& tile : plan.TilesOf(row)) {
      ASSERT_EQ(tile.key % plan.shape.tile_keys, 0);
      ASSERT_GT(tile.key, last);
      last = tile.key;
      for (int k = tile.key; k < tile.key + plan.shape.tile_keys; ++k) {
        ++times[static_cast<size_t>(k)];
      }
      bool any = false;
      bool all = true;
      for (int h = run.first_head; h < run.first_head + run.num_heads; ++h) {
        for (int q = row.first_query; q < row.first_query + row.num_queries; ++q) {
          for (int k = tile.key; k < tile.key + plan.shape.tile_keys; ++k) {
            const bool sees = mask.Sees(row.sequence, h, q, k);
            any = any || sees;
            all = all && sees;
          }
        }
      }
      ASSERT_TRUE(any) << "a fully masked tile at key " << tile.key;
      ASSERT_EQ(tile.partial, !all) << "tile at key " << tile.key;
    }
    for (int h = run.first_head; h < run.first_head + run.num_heads; ++h) {
      ASSERT_EQ(h / (plan.shape.num_heads / plan.shape.num_kv_heads), run.kv_head);
      for (int q = row.first_query; q < row.first_query + row.num_queries; ++q) {
        ASSERT_TRUE(covered.insert({row.sequence, h, q}).second);
        for (int k = 0; k < keys; ++k) {
          const bool sees = mask.Sees(row.sequence, h, q, k);
          ASSERT_EQ(plan.Sees(row.sequence, h, q, k), sees);
          ASSERT_TRUE(!sees || times[static_cast<size_t>(k)] == 1) << "query " << q << " key " << k;
        }
      }
    }
  }
  size_t expected = 0;
  for (const Sequence& s : plan.sequences) {
    expected += static_cast<size_t>(s.queries) * static_cast<size_t>(plan.shape.num_heads);
  }
  ASSERT_EQ(covered.size(), expected);
}

TEST(SparsePlan, CoversEveryUnmaskedPairOnceAndNoMaskedTile) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Shape shape;
    shape.num_kv_heads = 1 + random.Below(2);
    shape.num_heads = shape.num_kv_heads * (1 + random.Below(3));
    shape.tile_queries = random.OneOf({1, 3, 64, 128});
    shape.tile_keys = random.OneOf({64, 128, 256});
    const std::vector<Sequence> sequences = RandomSequences(random, 400);
    const Policy policy = RandomPolicy(random, shape, sequences);
    const auto plan = MakePlan(shape, policy, sequences);
    ASSERT_TRUE(plan) << plan.error().message;
    const BruteForce mask(shape, policy, sequences);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(*plan, mask));
  }
}

// Window 512 and 32 anchors over 16k keys: tiles by hand.
TEST(SparsePlan, WindowAndAnchorsVisitFewTiles) {
  const Shape shape{.num_heads = 4, .num_kv_heads = 1, .tile_queries = 128, .tile_keys = 128};
  const Policy policy{.heads = {{HeadRole::kLocal, 512, 32}}};
  const auto plan = MakePlan(shape, policy, {{16384, 16384}});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->runs.size(), 1u);  // the group shares each tile
  ASSERT_EQ(plan->rows.size(), 128u);
  // A row tile far from the start: the anchors' tile and five of the window.
  EXPECT_EQ(plan->TilesOf(plan->rows[100]).size(), 6u);
  EXPECT_EQ(plan->TilesOf(plan->rows[0]).size(), 1u);
  EXPECT_EQ(static_cast<int64_t>(plan->tiles.size()), 1 + 2 + 3 + 4 + 5 + 123 * 6);
  EXPECT_EQ(plan->DenseTiles(), 128 * 129 / 2);
}

TEST(SparsePlan, HeadsWithEqualMasksShareTheirTiles) {
  const Shape shape{.num_heads = 8, .num_kv_heads = 2, .tile_queries = 1};
  Policy policy;
  const HeadPolicy global{HeadRole::kGlobal}, local{HeadRole::kLocal, 100, 0}, off{HeadRole::kOff};
  policy.heads = {global, global, local, local, local, off, off, global};
  const auto plan = MakePlan(shape, policy, {{1, 1000}});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->runs.size(), 5u);  // a run ends with its kv head
  EXPECT_EQ(plan->runs[1].num_heads, 2);
  EXPECT_EQ(plan->runs[3].num_heads, 2);
  EXPECT_EQ(plan->TilesOf(plan->rows[0]).size(), 16u);
  EXPECT_EQ(plan->TilesOf(plan->rows[1]).size(), 2u);  // keys 899..999
  EXPECT_TRUE(plan->TilesOf(plan->rows[3]).empty());
}

TEST(SparsePlan, ErrorsNameWhatIsWrong) {
  const Shape shape{.num_heads = 4, .num_kv_heads = 2, .tile_queries = 1};
  const std::vector<Sequence> one = {{1, 100}};
  const auto message = [&](const Shape& s, const Policy& p,
                           const std::vector<Sequence>& sequences) {
    const auto plan = MakePlan(s, p, sequences);
    return plan ? std::string("accepted") : plan.error().message;
  };
  Policy global{.heads = {{HeadRole::kGlobal}}};
  EXPECT_EQ(message(shape, global, one), "accepted");
  Shape bad = shape;
  bad.num_heads = 5;
  EXPECT_THAT(message(bad, global, one), HasSubstr("5 heads over 2"));
  bad = shape;
  bad.tile_keys = 96;
  EXPECT_THAT(message(bad, global, one), HasSubstr("64, 128 or 256"));
  EXPECT_THAT(message(shape, global, {{5, 3}}), HasSubstr("5 queries and 3 keys"));
  Policy p = global;
  p.heads.resize(3);
  EXPECT_THAT(message(shape, p, one), HasSubstr("3 heads: expected 1 for all or 4"));
  p = global;
  p.learned_rows = 257;
  EXPECT_THAT(message(shape, p, one), HasSubstr("0 to 256"));
  p = global;
  p.heads[0] = {HeadRole::kLocal, -1, 0};
  EXPECT_THAT(message(shape, p, one), HasSubstr("window -1"));
  p = global;
  p.anchors.Add(std::vector<int32_t>{3, 3});
  EXPECT_THAT(message(shape, p, one), HasSubstr("anchor list 0 holds 3 at place 1"));
  p = global;
  p.heads[0].role = HeadRole::kBlocks;
  EXPECT_THAT(message(shape, p, one), HasSubstr("0 block lists: expected 1"));
}

// Heads whose key ranges reach from 1k to 64k: the lists, put on one line and cut, are even; a
// block for each head is not.
TEST(SparsePlan, UnequalHeadsAreBalanced) {
  const Shape shape{.num_heads = 32, .num_kv_heads = 32, .tile_queries = 1};
  Policy policy;
  for (int h = 0; h < 32; ++h) {
    policy.heads.push_back({HeadRole::kLocal, 1024 << h % 7, 0});
  }
  const auto plan = MakePlan(shape, policy, {{1, 65536}});
  ASSERT_TRUE(plan);
  std::vector<int64_t> lengths;
  std::vector<double> costs;
  for (const TileRow& row : plan->rows) {
    lengths.push_back(row.end - row.begin);
    costs.push_back(static_cast<double>(lengths.back()));
  }
  constexpr int kBlocks = 132;
  EXPECT_LE(LoadsOf(CutEvenly(lengths, kBlocks)).balance(), 1.1);
  EXPECT_GT(DealStatically(costs, kBlocks).balance(), 10);
  EXPECT_LT(DealStatically(costs, kBlocks).busy(), 0.1);
}

}  // namespace
}  // namespace fathom::ops::sparse
