#include "cost/attention.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cost/shared_banks.h"

namespace fathom::cost {
namespace {

AttentionCall Gqa(std::vector<AttentionSequence> sequences, int heads = 32, int kv_heads = 8,
                  int dim = 128) {
  return {.sequences = std::move(sequences),
          .heads = heads,
          .kv_heads = kv_heads,
          .dim_qk = dim,
          .dim_v = dim};
}

AttentionCall Mla(std::vector<AttentionSequence> sequences, int heads) {
  return {.sequences = std::move(sequences),
          .heads = heads,
          .kv_heads = 1,
          .dim_qk = 576,
          .dim_v = 512,
          .latent = true};
}

// Pair by pair, for every mask.
TEST(AttentionCost, PairsAndKeysMatchCounting) {
  for (const bool causal : {true, false}) {
    for (const int64_t window : {-1, 0, 1, 5, 64}) {
      for (const int64_t anchors : {0, 1, 7, 100}) {
        AttentionCall call = Gqa({{3, 40}, {40, 40}, {1, 9}, {0, 12}});
        call.causal = causal;
        call.window = window;
        call.anchors = anchors;
        double pairs = 0;
        double keys = 0;
        for (const AttentionSequence& s : call.sequences) {
          for (int64_t k = 0; k < s.keys; ++k) {
            bool seen = false;
            for (int64_t q = s.keys - s.queries; q < s.keys; ++q) {
              const bool kept =
                  (!causal || k <= q) && (window < 0 || std::abs(q - k) <= window || k < anchors);
              pairs += kept;
              seen = seen || kept;
            }
            keys += seen;
          }
        }
        EXPECT_EQ(KeptPairs(call), pairs) << causal << " " << window << " " << anchors;
        EXPECT_EQ(KeptKeys(call), keys) << causal << " " << window << " " << anchors;
      }
    }
  }
}

TEST(AttentionCost, CacheBytesOfEachEncoding) {
  AttentionCall gqa = Gqa({});
  EXPECT_EQ(CacheBytesPerToken(gqa), 512);
  gqa.cache = CacheEncoding::kFp8;
  EXPECT_EQ(CacheBytesPerToken(gqa), 256);
  gqa.cache = CacheEncoding::kInt8;
  EXPECT_EQ(CacheBytesPerToken(gqa), 264);
  AttentionCall mla = Mla({}, 16);
  EXPECT_EQ(CacheBytesPerToken(mla), 1152);
  mla.cache = CacheEncoding::kFp8;
  EXPECT_EQ(CacheBytesPerToken(mla), 656);
}

TEST(AttentionCost, DecodeFloorByHand) {
  // 1 x 8k, 32/8 heads of 128: 8192 tokens of 8 x 512 bytes; a query and an output of 32 x 128.
  const Cost gqa = AttentionFloor(Gqa({{1, 8192}}));
  EXPECT_EQ(gqa.bytes, 8192.0 * 8 * 512 + 32 * 256 * 2);
  EXPECT_EQ(gqa.flops, 2.0 * 8192 * 32 * 256);
  const auto roofs = AttentionRoofs(Gqa({{1, 8192}}), *FindHardware("H200"));
  EXPECT_EQ(roofs[0].name, "HBM");
  EXPECT_NEAR(roofs[0].seconds() * 1e6, 6.994, 1e-3);  // 33.57 MB at 4.8 TB/s

  // MLA with 128 heads: 1088 x 2 FLOPs a pair and head against 1152 bytes: 242 FLOPs a byte, past
  // the ridge of 206.
  const Cost mla = AttentionFloor(Mla({{1, 131072}}, 128));
  EXPECT_EQ(mla.flops, 2.0 * 131072 * 128 * 1088);
  EXPECT_NEAR(mla.flops / mla.bytes, 241.3, 0.2);
  EXPECT_EQ(AttentionRoofs(Mla({{1, 131072}}, 128), *FindHardware("H200"))[0].name, "tensor cores");
}

TEST(AttentionCost, PrefillIsBoundByTheTensorCores) {
  const AttentionCall call = Gqa({{8192, 8192}, {8192, 8192}});
  EXPECT_EQ(AttentionFloor(call).flops, 4.0 * 128 * 32 * 2 * (8192.0 * 8193 / 2));
  const auto roofs = AttentionRoofs(call, *FindHardware("H200"));
  EXPECT_EQ(roofs[0].name, "tensor cores");
  EXPECT_NEAR(roofs[0].seconds() * 1e6, 1111.6, 0.5);
  EXPECT_EQ(roofs[1].name, "exp2 units");
  // 132 SMs x 16 a clock x 1.83 GHz.
  EXPECT_NEAR(roofs[1].per_s, 3.865e12, 1e9);
}

// One head, 64 queries, 64 keys, one tile of 64 x 64, dims 64: every term by hand.
TEST(AttentionCost, FusedLevelsByHand) {
  AttentionCall call = Gqa({{64, 64}}, 1, 1, 64);
  call.causal = false;
  const LevelBytes prefill = FusedBytes(call, {.rows = 64, .keys = 64}, 1, 1, 0);
  EXPECT_EQ(prefill.hbm, 4 * 64 * 64 * 2);
  EXPECT_EQ(prefill.l2, 4 * 64 * 64 * 2);
  // Written: K, V, Q. Read: Q and K for the scores, V for the output.
  EXPECT_EQ(prefill.shared, 3 * 8192 + 2 * 8192 + 8192);
  // P as an operand; two products of 4 steps that read and write 64 x 64 float32.
  EXPECT_EQ(prefill.registers, 8192 + 2 * (4 * 2 * 64 * 64 * 4));

  const LevelBytes decode = FusedBytes(call, {.rows = 8, .keys = 64, .swapped = true}, 1, 1, 100);
  EXPECT_EQ(decode.l2, 2 * 8192 + 2 * 8 * 128 + 2 * 100);
  // Written: K, V, Q, P. Read: K, Q; V, P once (one block of 64 value columns).
  EXPECT_EQ(decode.shared, 2 * 8192 + 1024 + 8192 + 1024 + 8192 + 2 * 1024);
}

TEST(AttentionCost, UnfusedMovesScoresFourTimes) {
  AttentionCall mha = Gqa({{1024, 1024}}, 8, 8, 64);
  const double scores = 1024.0 * 1024 * 8 * 2;
  EXPECT_EQ(UnfusedBytes(mha).hbm, 4 * scores + 4 * 1024.0 * 8 * 64 * 2);
  // With shared heads, keys and values are written again for each query head and read from there.
  mha.kv_heads = 2;
  const double cache = 1024.0 * 2 * 128 * 2;
  EXPECT_EQ(UnfusedBytes(mha).hbm, 4 * scores + 4 * 1024.0 * 8 * 64 * 2 + cache + 4 * cache);
  EXPECT_EQ(HandbookUnfusedBytes(1000) / HandbookFusedBytes(1000), 5);
}

TEST(SharedBanks, StridesByHand) {
  EXPECT_EQ(StridedWavefronts(4, 4).count, 1);
  EXPECT_EQ(StridedWavefronts(8, 4).count, 2);
  EXPECT_EQ(StridedWavefronts(128, 4).count, 32);
  EXPECT_EQ(StridedWavefronts(132, 4).count, 1);  // one word of padding
  EXPECT_EQ(StridedWavefronts(20, 4).count, 1);   // a stride of 5 words
  EXPECT_EQ(StridedWavefronts(16, 4).count, 4);   // of 4 words
  EXPECT_EQ(StridedWavefronts(0, 4).count, 1);    // one word for all
  EXPECT_EQ(StridedWavefronts(8, 8).count, 2);    // half warps
  EXPECT_EQ(StridedWavefronts(16, 16).count, 4);  // quarter warps
  EXPECT_EQ(StridedWavefronts(16, 16).excess(), 0);
  EXPECT_EQ(StridedWavefronts(128, 16).count, 32);  // 8 rows of 128 bytes: one bank group
  EXPECT_EQ(StridedWavefronts(144, 16).count, 4);
}

TEST(Hardware, SmLimits) {
  EXPECT_EQ(SmLimitsOf(*FindHardware("H200")).shared_bytes_per_block, 232448);
  EXPECT_EQ(SmLimitsOf(*FindHardware("A100")).shared_bytes_per_block, 166912);
  EXPECT_EQ(SmLimitsOf(*FindHardware("L40S")).shared_bytes, 102400);
  for (const Hardware& hardware : KnownHardware()) {
    EXPECT_GT(hardware.num_sms, 0) << hardware.name;
    EXPECT_GT(hardware.clock_hz, 1e9) << hardware.name;
    EXPECT_GT(hardware.l2_bytes, 0u) << hardware.name;
  }
}

}  // namespace
}  // namespace fathom::cost
