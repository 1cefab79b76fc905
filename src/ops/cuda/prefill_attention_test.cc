#include "ops/cuda/prefill_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/cuda/prefill_schedule.h"

namespace fathom::ops {
namespace {

constexpr GpuLimits kH200 = {
    .compute_major = 9, .compute_minor = 0, .num_sms = 132, .shared_bytes_per_block = 232448};

PrefillAttentionShape Shape(int sequences, int length) {
  return {.num_sequences = sequences,
          .num_tokens = sequences * length,
          .max_kv_tokens = length,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128};
}

TEST(PlanPrefillAttention, CountsTilesAndSections) {
  const auto plan = PlanPrefillAttention(Shape(4, 4096), {}, kH200);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->rows, 128);
  EXPECT_GE(plan->max_tiles, 4 * 32);
  EXPECT_EQ(plan->num_blocks, 132);
  // A kv head has 520 tiles, 8 MiB: two have more than four for each SM.
  EXPECT_EQ(plan->section_heads, 8);
  EXPECT_EQ(PlanPrefillAttention(Shape(16, 1024), {}, kH200)->section_heads, 4);
  EXPECT_EQ(PlanPrefillAttention(Shape(1, 131072), {}, kH200)->section_heads, 4);
  EXPECT_EQ(PlanPrefillAttention(Shape(1, 128), {}, kH200)->section_heads, 32);
  // 16 heads of 10 MiB and 129 tiles: L2 holds four, which divide them evenly.
  auto expanded = Shape(1, 16384);
  expanded.num_heads = expanded.num_kv_heads = 16;
  expanded.head_dim_qk = 192;
  EXPECT_EQ(PlanPrefillAttention(expanded, {}, kH200)->section_heads, 4);
  expanded.num_heads = expanded.num_kv_heads = 13;  // as even as it gets: 4, 4, 4, 1
  EXPECT_EQ(PlanPrefillAttention(expanded, {}, kH200)->section_heads, 4);
  // 9 heads of 65 tiles have enough, and are all that L2 holds; 8 divide 128.
  auto many = Shape(1, 8192);
  many.num_heads = many.num_kv_heads = 128;
  many.head_dim_qk = 192;
  EXPECT_EQ(PlanPrefillAttention(many, {}, kH200)->section_heads, 8);
  auto chunk = Shape(1, 2048);
  chunk.max_kv_tokens = 16384;
  chunk.num_heads = 28;
  chunk.num_kv_heads = 7;  // L2 holds six: 4 and 3
  EXPECT_EQ(PlanPrefillAttention(chunk, {}, kH200)->section_heads, 16);
  // Unequal lengths: nine heads of what is there, but none of 16 times the longest.
  auto unequal = Shape(16, 1024);
  unequal.num_kv_heads = 32;
  unequal.max_kv_tokens = 9000;
  EXPECT_EQ(PlanPrefillAttention(unequal, {}, kH200)->section_heads, 1);
  unequal.max_total_kv_tokens = 10000;
  EXPECT_EQ(PlanPrefillAttention(unequal, {}, kH200)->section_heads, 4);
  // A short prompt has fewer tiles than the GPU has SMs.
  EXPECT_LE(PlanPrefillAttention(Shape(1, 100), {}, kH200)->num_blocks, 32);
}

TEST(PlanPrefillAttention, RefusalsSayWhy) {
  auto shape = Shape(1, 128);
  shape.head_dim_v = 64;
  auto plan = PlanPrefillAttention(shape, {}, kH200);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kUnsupported);
  EXPECT_NE(plan.error().message.find("d192_128 (head dims 192/128)"), std::string::npos);
  auto old = kH200;
  old.compute_major = 7;
  plan = PlanPrefillAttention(Shape(1, 128), {}, old);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("this GPU has 7.0"), std::string::npos);
  shape = Shape(1, 128);
  shape.page_tokens = 48;
  EXPECT_NE(PlanPrefillAttention(shape, {}, kH200).error().message.find("16, 32, 64, 128"),
            std::string::npos);
  shape = Shape(1, 128);
  shape.num_heads = 12;
  EXPECT_EQ(PlanPrefillAttention(shape, {}, kH200).error().code, Code::kInvalidArgument);
}

TEST(PlanPrefillAttention, PortableKernels) {
  const auto kind = [](const PrefillAttentionOptions& options, const GpuLimits& gpu) {
    return PlanPrefillAttention(Shape(1, 128), options, gpu)->kernel.kind;
  };
  EXPECT_EQ(kind({}, kH200), KernelKind::kWarpgroups);
  EXPECT_EQ(kind({.portable = true}, kH200), KernelKind::kPortable);
  auto a100 = kH200;
  a100.compute_major = 8;
  a100.shared_bytes_per_block = 166912;
  EXPECT_EQ(kind({}, a100), KernelKind::kPortable);
}

TEST(PlanPrefillAttention, Float16) {
  auto shape = Shape(1, 128);
  shape.dtype = DType::kF16;
  EXPECT_STREQ(PlanPrefillAttention(shape, {.portable = true}, kH200)->kernel.family,
               "d128_portable_f16");
  const auto of_f16 = PlanPrefillAttention(shape, {}, kH200);
  const auto of_bf16 = PlanPrefillAttention(Shape(1, 128), {}, kH200);
  EXPECT_STREQ(of_f16->kernel.family, "d128_f16");
  EXPECT_EQ(of_f16->rows, of_bf16->rows);
  EXPECT_EQ(of_f16->workspace_bytes, of_bf16->workspace_bytes);
  shape.tile_lists = true;
  EXPECT_STREQ(PlanPrefillAttention(shape, {}, kH200)->kernel.family, "d128_f16");
  EXPECT_NE(PlanPrefillAttention(shape, {.portable = true}, kH200)
                .error()
                .message.find("d128_portable_f16 (no tile lists)"),
            std::string::npos);
}

TEST(PlanPrefillAttention, WindowsNeedCausalMasks) {
  auto shape = Shape(1, 128);
  shape.window = 64;
  EXPECT_TRUE(PlanPrefillAttention(shape, {}, kH200));
  shape.causal = false;
  EXPECT_EQ(PlanPrefillAttention(shape, {}, kH200).error().code, Code::kInvalidArgument);
}

TEST(PlanPrefillAttention, TileLists) {
  auto shape = Shape(1, 128);
  shape.tile_lists = true;
  const auto plan = PlanPrefillAttention(shape, {}, kH200);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->kernel.tile_lists);
  const auto refused = [](const PrefillAttentionShape& s, const PrefillAttentionOptions& options) {
    return PlanPrefillAttention(s, options, kH200).error().message;
  };
  EXPECT_NE(refused(shape, {.portable = true}).find("d128_portable (no tile lists)"),
            std::string::npos);
  shape.window = 64;
  EXPECT_NE(refused(shape, {}).find("tile lists and window 64"), std::string::npos);
}

// Every key that some row of the tile sees lies in a visited tile, and no tile is visited for none.
TEST(PrefillTiles, CoverWindowAndAnchors) {
  kernels::cuda::PrefillParams params;
  for (const auto& [window, anchors] : {std::pair{100, 10}, {0, 0}, {512, 300}, {5000, 1}}) {
    params.window = window;
    params.anchors = anchors;
    for (const auto& [kv, queries, row] :
         {std::tuple{2000, 2000, 0}, {2000, 2000, 1024}, {2000, 100, 64}, {2000, 2000, 1920}}) {
      constexpr int kRows = 128;
      const auto tiles =
          kernels::cuda::PrefillTilesOf(params, kv, kv - queries, queries, row, kRows);
      std::vector<int> seen(static_cast<size_t>(kv) / kernels::cuda::kPrefillTileKeys + 1);
      for (int r = row; r < std::min(row + kRows, queries); ++r) {
        const int position = kv - queries + r;
        for (int key = 0; key <= position; ++key) {
          if (position - key <= window || key < anchors) {
            seen[static_cast<size_t>(key / kernels::cuda::kPrefillTileKeys)] = 1;
          }
        }
      }
      for (int visit = 0; visit < tiles.count; ++visit) {
        const int tile = visit < tiles.anchors ? visit : visit + tiles.skipped;
        EXPECT_EQ(seen[static_cast<size_t>(tile)]--, 1) << window << " " << row << " " << tile;
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), std::ssize(seen));
    }
  }
}

TEST(CheckPrefillParams, NamesWhatIsWrong) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  auto shape = Shape(2, 1000);
  shape.page_tokens = 64;
  const auto plan = PlanPrefillAttention(shape, {}, kH200);
  ASSERT_TRUE(plan);
  kernels::cuda::PrefillParams legal;
  legal.q = at(0x1000);
  legal.q_token_stride = legal.out_token_stride = 4096;
  legal.q_head_stride = legal.out_head_stride = 128;
  legal.num_tokens = 2000;
  legal.k = {at(0x10000), 131072, 2048, 256};
  legal.v = {at(0x20000), 131072, 2048, 256};
  legal.num_pages = 40;
  legal.page_tokens = 64;
  legal.page_table = static_cast<int32_t*>(at(0x3000));
  legal.page_table_stride = 16;
  legal.kv_lengths = static_cast<int32_t*>(at(0x4000));
  legal.query_starts = static_cast<int32_t*>(at(0x5000));
  legal.out = at(0x6000);
  legal.scale = 0.1f;
  BindPrefillWorkspace(*plan, at(0x100000), &legal);
  EXPECT_TRUE(CheckPrefillParams(*plan, legal));

  struct Breakage {
    void (*apply)(kernels::cuda::PrefillParams*);
    const char* says;
  };
  for (const Breakage& breakage : {
           Breakage{[](auto* p) { p->k.base = nullptr; }, "k is"},
           Breakage{[](auto* p) { p->v.token_stride_bytes = 2056; }, "2056 bytes"},
           Breakage{[](auto* p) { p->q_token_stride = 4100; }, "4100 elements"},
           Breakage{[](auto* p) { p->num_tokens = 2001; }, "expected 1 to 2000"},
           Breakage{[](auto* p) { p->page_table_stride = 15; }, "needs 16 entries"},
           Breakage{[](auto* p) { p->page_tokens = 32; }, "pages of 32"},
           Breakage{[](auto* p) { p->scale = -1; }, "scale -1"},
       }) {
    kernels::cuda::PrefillParams params = legal;
    breakage.apply(&params);
    const Status status = CheckPrefillParams(*plan, params);
    ASSERT_FALSE(status) << breakage.says;
    EXPECT_NE(status.error().message.find(breakage.says), std::string::npos)
        << status.error().message;
  }
}

}  // namespace
}  // namespace fathom::ops
