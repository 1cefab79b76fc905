#include "ops/cuda/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/cuda/decode_attention.h"
#include "ops/cuda/prefill_attention.h"

namespace fathom::ops {
namespace {

using ::testing::HasSubstr;

const GpuLimits kH200 = LimitsOf(*cost::FindHardware("H200"));

std::string Table(const std::string& entries) {
  return R"({"schema": "fathom.attention_tuning/1", "gpu": "NVIDIA H200", "entries": [)" + entries +
         "]}";
}

TEST(TuningTable, FirstEntryThatFitsCounts) {
  const auto table = ParseTuningTable(Table(R"(
    {"op": "decode", "head_dim_qk": 128, "head_dim_v": 128, "max_rows": 8, "parts_per_sm": 1},
    {"op": "decode", "head_dim_qk": 128, "head_dim_v": 128, "rows": 64, "max_segments": 16},
    {"op": "prefill", "head_dim_qk": 128, "head_dim_v": 128, "l2_section_mib": 16})"),
                                      "h200");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->Decode(128, 128, 8).parts_per_sm, 1);
  EXPECT_EQ(table->Decode(128, 128, 8).rows, 0);
  EXPECT_EQ(table->Decode(128, 128, 9).rows, 64);
  EXPECT_EQ(table->Decode(64, 64, 8), DecodeTuning{});
  EXPECT_EQ(table->Prefill(128, 128).l2_section_bytes, int64_t{16} << 20);
  EXPECT_EQ(table->Prefill(64, 64), PrefillTuning{});

  const auto again = ParseTuningTable(table->ToJson(), "NVIDIA H200");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->ToJson(), table->ToJson());
}

TEST(TuningTable, ErrorsSayWhereAndWhatIsLegal) {
  const auto message = [](const std::string& text, const char* gpu = "H200") {
    const auto table = ParseTuningTable(text, gpu);
    return table ? std::string("accepted") : table.error().message;
  };
  EXPECT_EQ(message(Table("")), "accepted");
  EXPECT_THAT(message("{"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(message("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(message(R"({"schema": "other/1"})"), HasSubstr("\"other/1\""));
  EXPECT_THAT(message(Table(""), "A100"), HasSubstr("made for \"NVIDIA H200\""));
  EXPECT_THAT(message(R"({"schema": "fathom.attention_tuning/1", "gpu": "H200"})"),
              HasSubstr("\"entries\" is missing"));
  EXPECT_THAT(message(Table("3")), HasSubstr("entries[0]: expected an object, found 3"));
  EXPECT_THAT(message(Table(R"({"op": "sort"})")), HasSubstr("\"sort\": expected \"decode\""));
  EXPECT_THAT(message(Table(R"({"op": "decode", "head_dim_v": 128})")),
              HasSubstr("\"head_dim_qk\" is missing"));
  const std::string dims = R"({"op": "decode", "head_dim_qk": 128, "head_dim_v": 128, )";
  EXPECT_THAT(message(Table(dims + R"("colour": 1})")), HasSubstr("unknown key \"colour\""));
  EXPECT_THAT(message(Table(dims + R"("l2_section_mib": 1})")), HasSubstr("unknown key"));
  EXPECT_THAT(message(Table(dims + R"("parts_per_sm": 9})")), HasSubstr("from 1 to 8"));
  EXPECT_THAT(message(Table(dims + R"("parts_per_sm": 1.5})")), HasSubstr("is 1.5"));
  EXPECT_THAT(message(Table(dims + R"("parts_per_sm": 18446744073709551615})")),
              HasSubstr("from 1 to 8"));
  EXPECT_THAT(message(Table(dims + R"("rows": 24})")), HasSubstr("8, 16, 32 or 64"));
  EXPECT_THAT(message(Table(dims + R"("min_segment_tokens": 300})")), HasSubstr("multiple of 256"));
}

TEST(TuningTable, PlansFollowIt) {
  const DecodeAttentionShape shape{.num_sequences = 1,
                                   .num_heads = 32,
                                   .num_kv_heads = 8,
                                   .head_dim_qk = 128,
                                   .head_dim_v = 128,
                                   .max_kv_tokens = 8192};
  const auto plan = [&shape](const DecodeTuning& tuning, Reduction reduction) {
    return *PlanDecodeAttention(shape, {.reduction = reduction, .tuning = tuning}, kH200);
  };
  const auto balanced = plan({}, Reduction::kBalanced);
  EXPECT_EQ(balanced.num_parts, 33);  // 132 SMs x 2 blocks / 8 kv heads
  EXPECT_TRUE(balanced.merge_by_block);
  EXPECT_EQ(plan({.parts_per_sm = 1}, Reduction::kBalanced).num_parts, 16);
  EXPECT_FALSE(plan({.warp_merge_partials = 64}, Reduction::kBalanced).merge_by_block);
  EXPECT_EQ(plan({.rows = 32}, Reduction::kBalanced).rows, 32);
  const auto invariant =
      plan({.min_segment_tokens = 512, .max_segments = 4}, Reduction::kBatchInvariant);
  EXPECT_EQ(invariant.split.min_segment_tiles, 8);
  EXPECT_EQ(invariant.num_slots, 4);

  auto latent = shape;
  latent.num_kv_heads = 1;
  latent.head_dim_qk = 576;
  latent.head_dim_v = 512;
  const auto refused = PlanDecodeAttention(latent, {.tuning = {.rows = 8}}, kH200);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("tuned for 8 rows: mla_576_512 has 16 32 64"));

  const PrefillAttentionShape prefill{.num_sequences = 1,
                                      .num_tokens = 1024,
                                      .max_kv_tokens = 65536,
                                      .num_heads = 32,
                                      .num_kv_heads = 8,
                                      .head_dim_qk = 128,
                                      .head_dim_v = 128};
  // 32 MiB of a kv head each.
  EXPECT_EQ(PlanPrefillAttention(prefill, {}, kH200)->section_heads, 4);
  EXPECT_EQ(
      PlanPrefillAttention(prefill, {.tuning = {.l2_section_bytes = int64_t{64} << 20}}, kH200)
          ->section_heads,
      8);
}

TEST(TuningTable, CandidatesStartWithTheDefault) {
  const auto decode = DecodeCandidates(2, true);
  EXPECT_EQ(decode[0], DecodeTuning{});
  for (size_t i = 1; i < decode.size(); ++i) EXPECT_NE(decode[i], DecodeTuning{});
  EXPECT_LT(DecodeCandidates(2, false).size(), decode.size());
  EXPECT_EQ(PrefillCandidates(int64_t{60} << 20).back().l2_section_bytes, int64_t{60} << 20);
  EXPECT_EQ(PrefillCandidates(0).size(), 1u);
}

}  // namespace
}  // namespace fathom::ops
