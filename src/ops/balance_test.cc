#include "ops/balance.h"

#include <gtest/gtest.h>

#include <random>

namespace fathom::ops {
namespace {

TEST(Balance, ByHand) {
  const std::vector<double> costs = {8, 1, 1, 1, 1};
  const Loads fixed = DealStatically(costs, 2);
  EXPECT_EQ(fixed.per_worker, (std::vector<double>{10, 2}));
  EXPECT_DOUBLE_EQ(fixed.balance(), 10.0 / 6);
  EXPECT_DOUBLE_EQ(fixed.busy(), 0.6);
  EXPECT_EQ(DealToFirstFree(costs, 2).per_worker, (std::vector<double>{8, 4}));
  // frac(i * 0.618...): 0, 0.618, 0.236, 0.854, 0.472.
  EXPECT_EQ(DealByHash(costs, 2).per_worker, (std::vector<double>{10, 2}));
  EXPECT_EQ(DealStatically({}, 3).balance(), 1);
}

TEST(Balance, CutsCoverEachItemOnceInEqualParts) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths;
    int64_t total = 0;
    for (int i = static_cast<int>(random() % 20); i >= 0; --i) {
      lengths.push_back(static_cast<int64_t>(random() % 50));
      total += lengths.back();
    }
    const int parts = 1 + static_cast<int>(random() % 40);
    const auto cut = CutEvenly(lengths, parts);
    ASSERT_EQ(cut.size(), static_cast<size_t>(parts));
    std::vector<int64_t> done(lengths.size(), 0);
    for (const auto& part : cut) {
      int64_t load = 0;
      for (const Piece& piece : part) {
        ASSERT_EQ(piece.begin, done[static_cast<size_t>(piece.item)]);
        ASSERT_GT(piece.end, piece.begin);
        done[static_cast<size_t>(piece.item)] = piece.end;
        load += piece.end - piece.begin;
      }
      ASSERT_LE(load, (total + parts - 1) / parts);
      ASSERT_GE(load, total / parts);
    }
    ASSERT_EQ(done, lengths);
  }
}

}  // namespace
}  // namespace fathom::ops
