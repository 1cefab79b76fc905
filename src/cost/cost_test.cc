#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/communication.h"
#include "cost/hardware.h"
#include "cost/memory_plan.h"
#include "cost/op_cost.h"

namespace fathom::cost {
namespace {

using ::testing::HasSubstr;

TEST(Hardware, FindsByProductName) {
  EXPECT_EQ(FindHardware("NVIDIA H200")->memory_bytes, 141'000'000'000u);
  EXPECT_EQ(FindHardware("NVIDIA H100 PCIe")->memory_bytes_per_s, 2.0e12);
  EXPECT_EQ(FindHardware("NVIDIA H100 80GB HBM3")->memory_bytes_per_s, 3.35e12);
  EXPECT_EQ(FindHardware("NVIDIA A100-SXM4-80GB")->name, "A100");
  EXPECT_EQ(FindHardware("NVIDIA A10")->name, "A10");
  EXPECT_EQ(FindHardware("NVIDIA A10G"), nullptr);
  EXPECT_EQ(FindHardware("TPU v5"), nullptr);
}

TEST(OpCost, CausalPairsCountByHand) {
  for (int kv = 1; kv <= 9; ++kv) {
    for (int q = 1; q <= kv; ++q) {
      int pairs = 0;
      for (int i = 0; i < q; ++i) pairs += kv - q + i + 1;
      EXPECT_EQ(CausalPairs(q, kv), pairs);
    }
  }
}

// FLOPs of a query-key pair and head with the published MLA dimensions.
TEST(OpCost, MlaPairsMatchThePublishedDimensions) {
  const MlaDims dims{.heads = 1, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128};
  const AttentionShape shape{.query_tokens = 0, .kv_tokens = 0, .pairs = 1};
  EXPECT_EQ(MlaExpanded(shape, dims, 1152, 0).flops, 640);
  EXPECT_EQ(MlaAbsorbed(shape, dims, 1152, 0).flops, 2176);
  EXPECT_EQ(GqaAttention(shape, 1, 192, 128, 640).flops, 640);
}

TEST(OpCost, DecodeReadsEveryWeightOnce) {
  const Cost one = Linear(1, 4096, 4096, 2.0 * 4096 * 4096);
  EXPECT_EQ(one.flops, 2.0 * 4096 * 4096);
  EXPECT_LT(one.flops / one.bytes, 1.01);
  EXPECT_EQ(ExpertsTouched(1, 256, 8), 8);
  EXPECT_NEAR(ExpertsTouched(10000, 256, 8), 256, 1e-6);
  EXPECT_EQ(Experts(1, 64, 6, 2048, 1408, 2).flops, 6.0 * 6 * 2048 * 1408);
}

TEST(OpCost, RooflineTakesTheSlowerSide) {
  EXPECT_EQ(RooflineSeconds({100, 10}, 10, 10), 10);
  EXPECT_EQ(RooflineSeconds({10, 100}, 10, 10), 10);
  EXPECT_EQ(RooflineSeconds({}, 0, 0), 0);
}

TEST(Communication, Volumes) {
  EXPECT_EQ(RingAllReduceBytes(100, 1), 0);
  EXPECT_EQ(RingAllReduceBytes(100, 4), 150);
  EXPECT_EQ(AllToAllDispatchBytes(1, 8, 1, 7168, 1), 0);
  // Two ranks: the other one is spared with probability 2^-8.
  EXPECT_NEAR(AllToAllDispatchBytes(1, 8, 2, 1000, 1), 1000 * (1 - 1.0 / 256), 1e-9);
  // 16K tokens, 32 layers, 8 heads of 128, one byte an element: 1.07 GB, keys and values.
  EXPECT_EQ(KvReshardBytes(16384, 32, 8, 128, 1), 1073741824.0);
}

TEST(MemoryPlan, SolvesForPages) {
  const KvRequest kv{.page_tokens = 64,
                     .page_bytes = 1000,
                     .sequence_tokens = 200,
                     .min_sequence_tokens = 100,
                     .max_pages = 50,
                     .share = 0.5};
  const auto plan = SolveMemoryPlan({{"weights", 40'000, ""}}, {100'000, "--max-memory"}, kv);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->max_pages, 60);
  EXPECT_EQ(plan->num_pages, 30);
  EXPECT_EQ(plan->sequence_tokens, 200);
  EXPECT_EQ(plan->TotalBytes(), 70'000u);
  EXPECT_THAT(plan->Table(), HasSubstr("30 pages of 64 tokens"));

  // One wanted sequence is worth more than its share; where it does not fit, a shorter one is.
  EXPECT_EQ(SolveMemoryPlan({{"weights", 95'000, ""}}, {100'000, "x"}, kv)->num_pages, 4);
  const auto shorter = SolveMemoryPlan({{"weights", 97'000, ""}}, {100'000, "x"}, kv);
  EXPECT_EQ(shorter->num_pages, 3);
  EXPECT_EQ(shorter->sequence_tokens, 192);
  EXPECT_EQ(SolveMemoryPlan({{"weights", 98'000, ""}}, {100'000, "x"}, kv)->num_pages, 2);

  const auto tight = SolveMemoryPlan({{"weights", 98'001, ""}}, {100'000, "cgroup limit"}, kv);
  ASSERT_FALSE(tight);
  EXPECT_EQ(tight.error().code, Code::kResourceExhausted);
  EXPECT_THAT(tight.error().message, HasSubstr("1 B are missing"));
  EXPECT_THAT(tight.error().message, HasSubstr("cgroup limit"));
  EXPECT_FALSE(SolveMemoryPlan({{"weights", 200'000, ""}}, {100'000, "x"}, kv));
}

}  // namespace
}  // namespace fathom::cost
