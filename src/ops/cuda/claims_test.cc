#include "ops/cuda/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::ops {
namespace {

using ::testing::HasSubstr;

const ClaimRow& Row(const std::vector<ClaimRow>& rows, const std::string& id) {
  for (const ClaimRow& row : rows) {
    if (row.id == id) return row;
  }
  ADD_FAILURE() << id;
  return rows[0];
}

TEST(Claims, EachHasACheckAndAFigure) {
  const auto rows = CheckClaims({});
  ASSERT_TRUE(rows) << rows.error().message;
  std::vector<std::string> ids;
  for (const ClaimRow& row : *rows) {
    ids.push_back(row.id);
    EXPECT_NE(row.claim, "");
    EXPECT_NE(row.check, "");
    EXPECT_NE(row.figure, "") << row.id;
  }
  EXPECT_THAT(ids, ::testing::ElementsAre("A4", "A7", "A8", "A22", "B1", "B2", "B3", "B4", "B5",
                                          "B6", "B7", "B8", "B9", "B10", "B13", "B15"));
  // Without measurements what needs them is open.
  EXPECT_EQ(Row(*rows, "B10").state, ClaimState::kOpen);
  EXPECT_EQ(Row(*rows, "B15").state, ClaimState::kOpen);
  EXPECT_EQ(Row(*rows, "A22").state, ClaimState::kOpen);
}

TEST(Claims, FiguresByHand) {
  const auto rows = CheckClaims({});
  ASSERT_TRUE(rows);
  // 16 heads of 16 to 1024 tiles, 4112 in all: 257 a head, 31.2 an SM.
  EXPECT_THAT(Row(*rows, "A8").figure,
              HasSubstr("busy 3 % of the time (the 16 blocks 25 %; balance 32.87)"));
  EXPECT_EQ(Row(*rows, "A8").state, ClaimState::kHolds);
  EXPECT_THAT(Row(*rows, "B1").figure, HasSubstr("grow 4."));
  EXPECT_THAT(Row(*rows, "B4").figure, HasSubstr("64 x 64; were the ratio above 1.2: 14 x 7"));
  EXPECT_THAT(Row(*rows, "B5").figure, HasSubstr("32 kv heads move 3.8"));
  EXPECT_EQ(Row(*rows, "B6").state, ClaimState::kHolds);
  EXPECT_THAT(Row(*rows, "B9").figure,
              HasSubstr("4 bytes 1, 4 words 4, 5 words 1, 128 bytes 32, 132 bytes 1"));
  EXPECT_THAT(Row(*rows, "B9").figure, HasSubstr("unpadded): 0"));
}

TEST(Claims, MeasurementsDecide) {
  ClaimEvidence evidence;
  evidence.fathom_us["12/12h d64 causal 8 x 2048"] = 200;
  evidence.best_peer_us["12/12h d64 causal 8 x 2048"] = 100;
  evidence.rope_ns = {{"Table", 50}, {"OnTheFly", 200}};
  evidence.rope_source = "rope.json";
  auto rows = CheckClaims(evidence);
  ASSERT_TRUE(rows);
  EXPECT_EQ(Row(*rows, "B15").state, ClaimState::kFails);
  EXPECT_THAT(Row(*rows, "B15").figure, HasSubstr("82 M tokens a second"));
  EXPECT_EQ(Row(*rows, "B10").state, ClaimState::kHolds);
  EXPECT_THAT(Row(*rows, "B10").figure, HasSubstr("(4.0x)"));
  EXPECT_EQ(Row(*rows, "B10").source, "rope.json");
  EXPECT_EQ(Row(*rows, "A22").state, ClaimState::kOpen);
  evidence.gather_gb_per_s = {{"contiguous", 4000},
                              {"pages of 16 tokens anywhere", 3920},
                              {"tokens anywhere (8 heads)", 3800}};
  evidence.stride_clocks = {{"4 bytes a lane, 128 bytes apart", 32.5}};
  rows = CheckClaims(evidence);
  EXPECT_EQ(Row(*rows, "A22").state, ClaimState::kFails);  // 98 %, not 82
  EXPECT_THAT(Row(*rows, "A22").figure, HasSubstr("16 tokens 98 %, tokens of 2048 bytes 95 %"));
  EXPECT_THAT(Row(*rows, "B9").figure, HasSubstr("clocks of a load: 128 bytes 32.5"));
  evidence.gather_gb_per_s["pages of 16 tokens anywhere"] = 3300;
  EXPECT_EQ(Row(*CheckClaims(evidence), "A22").state, ClaimState::kHolds);
  evidence.best_peer_us["12/12h d64 causal 8 x 2048"] = 300;
  EXPECT_EQ(Row(*CheckClaims(evidence), "B15").state, ClaimState::kHoldsInPart);
}

}  // namespace
}  // namespace fathom::ops
