#include "ops/cuda/mla_prefill.h"

#include <gtest/gtest.h>

#include <string>

namespace fathom::ops {
namespace {

constexpr GpuLimits kH200 = {
    .compute_major = 9, .compute_minor = 0, .num_sms = 132, .shared_bytes_per_block = 232448};

MlaPrefillShape Chunk(int heads, int chunk, int keys) {
  return {.num_sequences = 1, .num_tokens = chunk, .max_kv_tokens = keys, .num_heads = heads};
}

TEST(PlanMlaPrefill, PartsFitTheWorkspaceAndAreEven) {
  for (const int heads : {4, 16, 128}) {
    for (const int keys : {1, 127, 4096, 32768, 100000}) {
      const MlaPrefillOptions options;
      const auto plan = PlanMlaPrefill(Chunk(heads, 1, keys), options, kH200);
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_LE(plan->expanded_bytes, options.expanded_bytes + 4 * 256);  // alignment
      EXPECT_EQ(plan->part_keys % 128, 0);
      EXPECT_GE(int64_t{plan->num_parts} * plan->part_keys, keys);
      EXPECT_LT(int64_t{plan->num_parts - 1} * plan->part_keys, keys);
      EXPECT_EQ(plan->prefill.shape.head_dim_qk, 192);
    }
  }
  // A short prompt takes what it needs and keeps no partial results.
  const auto small = PlanMlaPrefill(Chunk(16, 100, 100), {}, kH200);
  EXPECT_EQ(small->num_parts, 1);
  EXPECT_EQ(small->part_keys, 128);
  EXPECT_EQ(small->state_bytes, 0);
}

TEST(PlanMlaPrefill, PartialResultsAreBounded) {
  // 256 MiB hold 3968 keys of 128 heads: 9 parts of 32768 keys, of which 8 are merged at once.
  const MlaPrefillOptions options = {.expanded_bytes = int64_t{256} << 20};
  const auto all = PlanMlaPrefill(Chunk(128, 64, 32768), options, kH200);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->num_parts, 9);
  constexpr int64_t kRow = 128 * 2 + 4;
  constexpr int64_t kRows = 64 * 128;
  EXPECT_NEAR(all->state_bytes, kRows * (7 * kRow + 4 + 128 * 4 + 4), 2048);
  const auto longer = PlanMlaPrefill(Chunk(128, 64, 1 << 20), options, kH200);
  EXPECT_EQ(longer->state_bytes, all->state_bytes);
  const auto wider =
      PlanMlaPrefill(Chunk(128, 64, 32768), {.expanded_bytes = int64_t{1} << 30}, kH200);
  EXPECT_LT(wider->num_parts, 4);
  EXPECT_NE(wider->Describe().find("workspace " + std::to_string(wider->workspace_bytes)),
            std::string::npos);
}

TEST(PlanMlaPrefill, SequencesShareParts) {
  auto shape = Chunk(16, 1024, 4096);
  shape.num_sequences = 8;
  EXPECT_EQ(PlanMlaPrefill(shape, {}, kH200)->shape.max_total_kv_tokens, 32768);
  shape.max_total_kv_tokens = 5000;
  const auto plan = PlanMlaPrefill(shape, {}, kH200);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_parts, 1);
  EXPECT_EQ(plan->part_keys, 5120);

  // However many sequences a part holds pieces of, its keys are counted once: L2 has room for 11
  // heads of 4.1 MiB, and 8 of 64 tiles or more have four for each SM.
  for (const int sequences : {1, 4, 16}) {
    auto chunks = Chunk(128, 8192, 32768 / sequences);
    chunks.num_sequences = sequences;
    const auto parts = PlanMlaPrefill(chunks, {}, kH200);
    ASSERT_TRUE(parts);
    EXPECT_EQ(parts->num_parts, 5);
    EXPECT_EQ(parts->prefill.section_heads, 8) << sequences;
  }
}

TEST(PlanMlaPrefill, RefusalsSayWhy) {
  const auto message = [](MlaPrefillShape shape, const MlaPrefillOptions& options = {},
                          const GpuLimits& gpu = kH200) {
    const auto plan = PlanMlaPrefill(shape, options, gpu);
    return plan ? std::string("accepted") : plan.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  auto shape = Chunk(16, 10, 100);
  shape.latent_dim = 256;
  EXPECT_TRUE(has(message(shape), "supported are 128 + 64, 128 and 512"));
  shape = Chunk(16, 10, 100);
  shape.page_tokens = 0;
  EXPECT_TRUE(has(message(shape), "16, 32, 64 or 128"));
  shape = Chunk(16, 10, 100);
  shape.dtype = DType::kF32;
  EXPECT_TRUE(has(message(shape), "dtype BF16 only, not F32"));
  shape = Chunk(16, 10, 100);
  shape.max_total_kv_tokens = 99;
  EXPECT_TRUE(has(message(shape), "99 keys of all sequences"));
  EXPECT_TRUE(has(message(Chunk(0, 10, 100)), "0 heads"));
  EXPECT_TRUE(has(message(Chunk(16, 10, 100), {.expanded_bytes = 1000}), "a part of 128 keys"));
  EXPECT_TRUE(has(message(Chunk(16, 10, 100), {.max_states = 1}), "expected 2 to 16"));
  auto old = kH200;
  old.compute_major = 7;
  EXPECT_TRUE(has(message(Chunk(16, 10, 100), {}, old), "this GPU has 7.0"));
  old.compute_major = 8;
  old.shared_bytes_per_block = 166912;
  EXPECT_EQ(PlanMlaPrefill(Chunk(16, 10, 100), {}, old)->prefill.kernel.kind,
            KernelKind::kPortable);
}

TEST(CheckMlaPrefillParams, NamesWhatIsWrong) {
  const auto plan = PlanMlaPrefill(Chunk(2, 10, 100), {}, kH200);
  ASSERT_TRUE(plan);
  alignas(256) static char memory[256];
  kernels::cuda::MlaPrefillParams good;
  good.q = good.w_uk = good.w_uv = memory;
  good.out = memory;
  good.plane[0] = {memory, 64 * 1024, 1024, 1024};
  good.plane[1] = {memory, 64 * 128, 128, 128};
  good.page_table = good.kv_lengths = good.query_starts = reinterpret_cast<int32_t*>(memory);
  good.page_table_stride = 2;
  good.q_token_stride = 2 * 192;
  good.q_head_stride = 192;
  good.num_tokens = 10;
  good.scale = 0.1F;
  BindMlaPrefillWorkspace(*plan, memory, &good);
  ASSERT_TRUE(CheckMlaPrefillParams(*plan, good));
  const auto refused = [&](auto change, const char* part) {
    auto params = good;
    change(params);
    const Status status = CheckMlaPrefillParams(*plan, params);
    return !status && status.error().message.find(part) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& p) { p.w_uv = nullptr; }, "w_uv"));
  EXPECT_TRUE(refused([](auto& p) { p.plane[1].base = memory + 8; }, "rotated keys"));
  EXPECT_TRUE(refused([](auto& p) { p.plane[0].token_stride_bytes = 1000; }, "multiple of 16"));
  EXPECT_TRUE(refused([](auto& p) { p.q_head_stride = 4; }, "multiple of 8"));
  EXPECT_TRUE(refused([](auto& p) { p.num_tokens = 11; }, "expected 1 to 10"));
  EXPECT_TRUE(refused([](auto& p) { p.page_table_stride = 1; }, "needs 2 entries"));
  EXPECT_TRUE(refused([](auto& p) { p.scale = 0; }, "scale"));
}

}  // namespace
}  // namespace fathom::ops
