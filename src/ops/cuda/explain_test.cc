#include "ops/cuda/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::ops {
namespace {

using ::testing::HasSubstr;

const cost::Hardware& Gpu(const char* name) { return *cost::FindHardware(name); }

AttentionCase Case(bool decode, const std::string& heads, const std::string& dims,
                   const std::string& lengths, int64_t queries = 0) {
  AttentionCase made{.decode = decode};
  EXPECT_TRUE(ParseHeads(heads, &made));
  EXPECT_TRUE(ParseDims(dims, &made));
  EXPECT_TRUE(ParseLengths(lengths, queries, &made));
  if (!decode) made.page_tokens = 0;
  return made;
}

Explanation Explained(const AttentionCase& problem, const char* gpu = "H200",
                      const ExplainOptions& options = {}) {
  auto explanation = Explain(problem, Gpu(gpu), options);
  EXPECT_TRUE(explanation) << explanation.error().message;
  return *std::move(explanation);
}

TEST(AttentionCase, NamesAreThoseOfTheResults) {
  EXPECT_EQ(Case(true, "32/8", "128", "8k").Name(), "gqa 32/8h d128 1 x 8k");
  AttentionCase float16 = Case(true, "16", "mla", "8k");
  float16.dtype = DType::kF16;
  EXPECT_EQ(float16.Name(), "mla 16h f16 1 x 8k");
  float16.call.cache = cost::CacheEncoding::kInt8;
  EXPECT_EQ(float16.Name(), "mla 16h int8 f16 1 x 8k");
  float16 = Case(false, "16", "mla", "4k");
  float16.dtype = DType::kF16;
  EXPECT_EQ(float16.Name(), "mla 16h 1 x 4096, float16");
  EXPECT_EQ(Case(true, "32/8", "128", "1x64k,63x1k").Name(), "gqa 32/8h d128 1 x 64k + 63 x 1k");
  EXPECT_EQ(Case(true, "16", "mla", "32x8192").Name(), "mla 16h 32 x 8k");
  EXPECT_EQ(Case(true, "16", "mla", "2x100", 3).Name(), "mla 16h 2 x 100, 3 queries");
  EXPECT_EQ(Case(false, "32/8", "128", "16x1024").Name(), "32/8h d128 causal 16 x 1024");
  EXPECT_EQ(Case(false, "32/8", "128", "64k", 512).Name(), "32/8h d128 causal 512 of 65536");
  EXPECT_EQ(Case(false, "16", "192/128", "4k").Name(), "16/16h d192/128 causal 1 x 4096");
}

TEST(AttentionCase, ErrorsSayWhatIsLegal) {
  AttentionCase c;
  EXPECT_THAT(ParseHeads("32/5", &c).error().message, HasSubstr("multiple"));
  EXPECT_THAT(ParseHeads("32/4/2", &c).error().message, HasSubstr("QUERY/KV"));
  EXPECT_THAT(ParseHeads("x", &c).error().message, HasSubstr("heads \"x\""));
  EXPECT_THAT(ParseDims("MLA", &c).error().message,
              HasSubstr("head dims \"MLA\": expected mla, D or QK/V, each 1 to 1024"));
  EXPECT_THAT(ParseLengths("8kk", 0, &c).error().message, HasSubstr("keys \"8kk\""));
  EXPECT_THAT(ParseLengths("8m", 0, &c).error().message, HasSubstr("k is the only unit"));
  EXPECT_THAT(ParseLengths("", 0, &c).error().message, HasSubstr("keys \"\""));
  EXPECT_THAT(ParseLengths("9999999999k", 0, &c).error().message, HasSubstr("expected 1 to"));
  EXPECT_THAT(ParseLengths("4", 5, &c).error().message, HasSubstr("5 queries"));
  EXPECT_THAT(ParseLengths("9999999x1", 0, &c).error().message, HasSubstr("sequences"));
}

TEST(Explain, DecodeByHand) {
  const Explanation e = Explained(Case(true, "32/8", "128", "8k"));
  EXPECT_NEAR(e.floor_us(), 6.994, 1e-3);
  EXPECT_EQ(e.roofs[0].name, "HBM");
  EXPECT_NEAR(e.ridge, 206.1, 0.1);
  ASSERT_TRUE(e.kernel);
  EXPECT_EQ(e.kernel->tiles, 128 * 8);  // 8192 / 64 for each kv head
  EXPECT_EQ(e.kernel->dense_tiles, e.kernel->tiles);
  // Half of the 8 rows are padding.
  EXPECT_EQ(e.kernel->flops, 2 * e.floor.flops);
  ASSERT_TRUE(e.schedule);
  EXPECT_EQ(e.schedule->slots, 264);
  EXPECT_EQ(e.schedule->blocks, 264);
  EXPECT_DOUBLE_EQ(e.schedule->waves, 1);
  EXPECT_EQ(e.schedule->occupancy, 2.0 * 160 / 2048);
  // 128 tiles in 33 parts: 4 at most, 3.88 on average.
  EXPECT_NEAR(e.schedule->balance, 4 / (128.0 / 33), 1e-9);
}

TEST(Explain, PrefillByHand) {
  const Explanation e = Explained(Case(false, "32/8", "128", "2x8192"));
  EXPECT_EQ(e.roofs[0].name, "tensor cores");
  ASSERT_TRUE(e.kernel);
  // 64 row tiles of 128 rows; row tile i visits i + 1 key tiles.
  EXPECT_EQ(e.kernel->tiles, 2 * 32 * 64 * 65 / 2);
  EXPECT_LT(e.schedule->balance, 1.02);
  EXPECT_EQ(e.schedule->blocks, 132);
  EXPECT_GT(e.unfused.hbm, 20 * e.kernel->fused.hbm);
}

// The bounds of unequal work: one 64k sequence among 63 of 1k, and key ranges from 1k to 64k.
TEST(Explain, UnequalWorkIsWithinATenthOfPerfectBalance) {
  for (const AttentionCase& problem :
       {Case(true, "32/8", "128", "1x64k,63x1k"), Case(true, "8/2", "128", "1x64k,63x1k"),
        Case(true, "16", "mla", "1x64k,63x1k"), Case(true, "128", "mla", "1x64k,63x1k"),
        Case(true, "32/8", "128", "1k,2k,4k,8k,16k,32k,64k"),
        Case(false, "32/8", "128", "1x64k,63x1k"), Case(false, "16", "192/128", "1x64k,63x1k"),
        Case(false, "32/8", "128", "1k,2k,4k,8k,16k,32k,64k")}) {
    const Explanation e = Explained(problem);
    ASSERT_TRUE(e.schedule);
    EXPECT_LE(e.schedule->balance, 1.1) << e.name;
    for (const PolicyRow& row : e.policies) {
      if (row.name == "fathom") {
        EXPECT_LE(row.schedule.balance, 1.1) << e.name;
      }
      if (row.name == "handbook-static") {
        EXPECT_GT(row.schedule.balance, 1.5) << e.name;
        EXPECT_LT(row.schedule.busy, 0.7) << e.name;
      }
    }
  }
}

TEST(Explain, WindowVisitsFewTiles) {
  AttentionCase problem = Case(false, "32/8", "128", "16k");
  problem.call.window = 512;
  problem.call.anchors = 32;
  const Explanation e = Explained(problem);
  EXPECT_TRUE(e.schedule);
  ASSERT_TRUE(e.kernel);
  EXPECT_EQ(e.kernel->tiles, 32 * (1 + 2 + 3 + 4 + 5 + 123 * 6));
  EXPECT_EQ(e.kernel->dense_tiles, 32 * 128 * 129 / 2);
  problem = Case(true, "32/8", "128", "1x64k,7x32k");
  problem.call.window = 4096;
  problem.call.anchors = 32;
  const Explanation decode = Explained(problem);
  ASSERT_TRUE(decode.schedule) << decode.plan;
  EXPECT_EQ(decode.kernel->tiles, 8 * 8 * (1 + 65));  // kv heads, sequences
  EXPECT_THAT(decode.schedule->mapping, HasSubstr("all heads' listed tiles"));
  EXPECT_LE(decode.schedule->balance, 1.1);
  problem = Case(true, "16", "mla", "8k");
  problem.call.cache = cost::CacheEncoding::kFp8;
  EXPECT_TRUE(Explained(problem).schedule);
  problem = Case(false, "32/8", "128", "8k");
  problem.call.cache = cost::CacheEncoding::kFp8;
  EXPECT_THAT(Explained(problem).plan, HasSubstr("no CUDA prefill kernel reads a quantised"));
}

TEST(Explain, OtherGpusAndShapesSayWhyThereIsNoPlan) {
  AttentionCase quantised = Case(true, "16", "mla", "8k");
  EXPECT_TRUE(Explained(quantised, "A100").schedule);
  quantised.call.cache = cost::CacheEncoding::kFp8;
  const Explanation a100 = Explained(quantised, "A100");
  EXPECT_THAT(a100.plan, HasSubstr("needs compute capability 9.0"));
  EXPECT_FALSE(a100.schedule);
  EXPECT_TRUE(a100.kernel);  // its tiles are priced all the same
  const Explanation odd = Explained(Case(true, "32/8", "96", "8k"));
  EXPECT_THAT(odd.plan, HasSubstr("Refused: gqa_d64"));
  EXPECT_FALSE(odd.kernel);
  EXPECT_GT(odd.floor_us(), 0);
}

TEST(Explain, PrefillFromLatents) {
  AttentionCase problem = Case(false, "16", "mla", "64k");
  problem.page_tokens = 64;
  problem.call.sequences = {{2048, 65536}};
  const Explanation e = Explained(problem);
  EXPECT_EQ(e.name, "mla 16h 2048 of 65536");
  EXPECT_DOUBLE_EQ(e.expansion_flops, 2.0 * 65536 * 512 * 16 * 256);
  // As the benchmark computes it: 65536 keys of 2048 queries but for the triangle above them.
  EXPECT_DOUBLE_EQ(e.floor.flops - e.expansion_flops,
                   2.0 * (2048.0 * 65536 - 2048.0 * 2047 / 2) * 16 * 320);
  EXPECT_EQ(e.roofs.front().name, "tensor cores");
  EXPECT_THAT(e.plan, HasSubstr("2 parts of 32768 keys"));
  EXPECT_TRUE(e.kernel);
  EXPECT_FALSE(e.schedule);  // one for each part
  EXPECT_THAT(ToText(e), HasSubstr("and 274.9 to expand latents"));
  problem.call.window = 512;
  EXPECT_THAT(Explained(problem).plan, HasSubstr("has no window"));
  problem.call.window = -1;
  problem.call.sequences = {{4096, 4096}};
  EXPECT_TRUE(Explained(problem, "A100").schedule);
}

TEST(Explain, TextShowsEverything) {
  const std::string text =
      ToText(Explained(Case(true, "32/8", "128", "8k"), "H200", {.measured_us = 19.2}));
  for (const char* part :
       {"gqa 32/8h d128 1 x 8k on H200", "of HBM: binds", "36.4 % of the floor's 6.99 us",
        "registers", "tiles visited", "balance 1.031", "values as wgmma operand", "handbook-io"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Policies, TheHandbooksFormulas) {
  // sqrt(2000 / 25.6) = 8.8: 9 rows and 4 keys, which no matrix instruction takes.
  EXPECT_EQ(HandbookIoBlock(2000, 1000).rows, 9);
  EXPECT_EQ(HandbookIoBlock(2000, 1000).keys, 4);
  EXPECT_EQ(HandbookIoBlock(1e6, 1).rows, 128);
  EXPECT_EQ(HandbookIoBlock(4800, 4000).rows, 64);  // not more than 1.2 times
  const AttentionCase prefill = Case(false, "32/8", "128", "8k");
  const auto blocks = EvaluatePolicy("handbook-blocks", prefill, Gpu("H200"));
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->keys, 256);
  EXPECT_THAT(blocks->obstacle, HasSubstr("bytes of shared memory"));
  EXPECT_EQ(EvaluatePolicy("handbook-blocks", prefill, Gpu("A100"))->keys, 64);
  EXPECT_THAT(EvaluatePolicy("handbook-blocks", prefill, Gpu("B200"))->obstacle,
              HasSubstr("names A100"));
  EXPECT_THAT(EvaluatePolicy("handbook-io", prefill, Gpu("H200"), 3000)->obstacle,
              HasSubstr("14 x 7"));
  EXPECT_EQ(EvaluatePolicy("fathom", prefill, Gpu("H200"))->obstacle, "");
  // 1024 shards of 64 keys on 264 blocks: 3.88 each on average, 5 at most.
  const auto hashed =
      EvaluatePolicy("handbook-hash-64", Case(true, "32/8", "128", "8k"), Gpu("H200"));
  EXPECT_NEAR(hashed->schedule.balance, 5 / (1024.0 / 264), 0.3);
  EXPECT_THAT(EvaluatePolicy("best", prefill, Gpu("H200")).error().message,
              HasSubstr("handbook-static"));
}

}  // namespace
}  // namespace fathom::ops
