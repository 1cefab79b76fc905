#include "ops/cuda/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cuda/decode_schedule.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

constexpr GpuLimits kH200 = {
    .compute_major = 9, .compute_minor = 0, .num_sms = 132, .shared_bytes_per_block = 232448};

DecodeAttentionShape Gqa(int sequences, int kv_tokens) {
  return {.num_sequences = sequences,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .max_kv_tokens = kv_tokens};
}

DecodeAttentionShape Mla(int heads, int sequences, int kv_tokens) {
  return {.num_sequences = sequences,
          .num_heads = heads,
          .num_kv_heads = 1,
          .head_dim_qk = 576,
          .head_dim_v = 512,
          .max_kv_tokens = kv_tokens};
}

TEST(PlanDecodeAttention, FillsTheGpu) {
  const auto gqa = PlanDecodeAttention(Gqa(1, 8192), {}, kH200);
  ASSERT_TRUE(gqa) << gqa.error().message;
  EXPECT_EQ(gqa->rows, 8);
  EXPECT_EQ(gqa->row_tiles, 1);
  EXPECT_EQ(gqa->num_parts * 8, 264);  // two blocks an SM

  // 32 sequences would leave the blocks of a 33rd part without work.
  EXPECT_EQ(PlanDecodeAttention(Gqa(32, 8192), {}, kH200)->num_parts, 32);
  EXPECT_EQ(PlanDecodeAttention(Gqa(32, 512), {}, kH200)->num_parts, 33);   // short parts
  EXPECT_EQ(PlanDecodeAttention(Gqa(29, 8192), {}, kH200)->num_parts, 33);  // gives up too many
  EXPECT_EQ(PlanDecodeAttention(Mla(128, 32, 8192), {}, kH200)->num_parts, 64);

  const auto mla = PlanDecodeAttention(Mla(16, 1, 8192), {}, kH200);
  ASSERT_TRUE(mla);
  EXPECT_EQ(mla->rows, 16);
  EXPECT_EQ(mla->num_parts, 132);
  EXPECT_TRUE(mla->merge_inside);
  EXPECT_EQ(mla->PartialElementBytes(), 2);
  EXPECT_FALSE(
      PlanDecodeAttention(Mla(16, 1, 8192), {.reduction = Reduction::kSpans}, kH200)->merge_inside);
  EXPECT_FALSE(  // not all blocks can run at the same time
      PlanDecodeAttention(Mla(16, 1, 8192), {.tuning = {.parts_per_sm = 2}}, kH200)->merge_inside);
  auto quantised = Mla(16, 1, 8192);
  quantised.code = cuda::CacheCode::kE4m3;
  EXPECT_TRUE(PlanDecodeAttention(quantised, {}, kH200)->merge_inside);
  EXPECT_TRUE(PlanDecodeAttention(Mla(128, 32, 8192), {}, kH200)->merge_inside);

  const auto wide = PlanDecodeAttention(Mla(128, 4, 8192), {}, kH200);
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->rows, 64);
  EXPECT_EQ(wide->row_tiles, 2);
  EXPECT_EQ(wide->num_parts, 66);
  EXPECT_EQ(PlanDecodeAttention(Mla(4, 1, 100), {}, kH200)->rows, 16);
}

TEST(PlanDecodeAttention, LongWalksAreForWarpsThatWorkAlone) {
  const auto kind = [](const DecodeAttentionShape& shape, const DecodeAttentionOptions& options) {
    const auto plan = PlanDecodeAttention(shape, options, kH200);
    EXPECT_TRUE(plan);
    return plan->kernel.kind;
  };
  EXPECT_EQ(kind(Gqa(1, 8192), {}), KernelKind::kWarpgroups);
  EXPECT_EQ(kind(Gqa(1, 32768), {}), KernelKind::kWarps);
  EXPECT_EQ(kind(Gqa(32, 8192), {}), KernelKind::kWarps);
  // Not where bits may not depend on the batch, the tuning knows better, or rows are many.
  EXPECT_EQ(kind(Gqa(32, 8192), {.reduction = Reduction::kSpans}), KernelKind::kWarpgroups);
  EXPECT_EQ(kind(Gqa(32, 8192), {.tuning = {.rows = 32}}), KernelKind::kWarpgroups);
  EXPECT_EQ(kind(Gqa(32, 8192), {.kernel = DecodeKernel::kWarpgroups}), KernelKind::kWarpgroups);
  auto several = Gqa(32, 8192);
  several.max_query_tokens = 8;
  EXPECT_EQ(kind(several, {}), KernelKind::kWarpgroups);
  EXPECT_EQ(kind(Mla(16, 32, 8192), {}), KernelKind::kWarpgroups);
}

TEST(PlanDecodeAttention, RowsHoldTheGroupsQueryTokens) {
  for (const int queries : {1, 2, 3, 8}) {
    for (const int heads : {8, 24, 40, 64, 128}) {
      auto shape = Gqa(3, 1000);
      shape.num_heads = heads;
      shape.max_query_tokens = queries;
      const auto plan = PlanDecodeAttention(shape, {}, kH200);
      ASSERT_TRUE(plan);
      EXPECT_GE(plan->rows * plan->row_tiles, heads / 8 * queries);
      EXPECT_LT(plan->rows * (plan->row_tiles - 1), heads / 8 * queries);
    }
  }
}

TEST(PlanDecodeAttention, RefusalsSayWhy) {
  auto shape = Gqa(1, 100);
  shape.head_dim_qk = shape.head_dim_v = 96;
  auto plan = PlanDecodeAttention(shape, {}, kH200);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kUnsupported);
  EXPECT_NE(plan.error().message.find("gqa_d128 (head dims 128/128)"), std::string::npos);
  EXPECT_NE(plan.error().message.find("mla_576_512"), std::string::npos);

  auto a100 = kH200;
  a100.compute_major = 7;
  plan = PlanDecodeAttention(Gqa(1, 100), {}, a100);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("needs compute capability 9.0, this GPU has 7.0"),
            std::string::npos);

  shape = Gqa(1, 100);
  shape.dtype = DType::kF16;
  EXPECT_STREQ(PlanDecodeAttention(shape, {}, kH200)->kernel.family, "gqa_d128_f16");
  EXPECT_STREQ(PlanDecodeAttention(shape, {.portable = true}, kH200)->kernel.family,
               "gqa_d128_portable_f16");
  // Float16 is planned as bf16 is.
  auto queries = Gqa(1, 100);
  queries.max_query_tokens = 8;
  auto lists = Gqa(32, 8192);
  lists.tile_lists = true;
  auto codes = Gqa(32, 8192);
  codes.code = cuda::CacheCode::kInt8;
  auto latent_codes = Mla(16, 1, 8192);
  latent_codes.code = cuda::CacheCode::kE4m3;
  for (auto alike : {Gqa(1, 100), Gqa(32, 8192), queries, lists, Mla(16, 1, 8192), Mla(24, 1, 8192),
                     Mla(128, 1, 8192), codes, latent_codes}) {
    alike.dtype = DType::kF16;
    const auto of_f16 = PlanDecodeAttention(alike, {}, kH200);
    ASSERT_TRUE(of_f16) << of_f16.error().message;
    EXPECT_EQ(of_f16->kernel.dtype, DType::kF16);
    alike.dtype = DType::kBF16;
    const auto of_bf16 = PlanDecodeAttention(alike, {}, kH200);
    EXPECT_EQ(of_f16->kernel.kind, of_bf16->kernel.kind) << of_f16->kernel.family;
    EXPECT_EQ(of_f16->kernel.quantised, of_bf16->kernel.quantised);
    EXPECT_EQ(of_f16->rows, of_bf16->rows);
    EXPECT_EQ(of_f16->workspace_bytes, of_bf16->workspace_bytes);
  }
  shape.code = cuda::CacheCode::kInt8;
  EXPECT_STREQ(PlanDecodeAttention(shape, {}, kH200)->kernel.family, "gqa_d128_quantised_f16");
  shape.dtype = DType::kF32;
  EXPECT_NE(PlanDecodeAttention(shape, {}, kH200)
                .error()
                .message.find("gqa_d128_quantised_f16 (dtype F16 only, not F32)"),
            std::string::npos);
  auto latent = Mla(16, 1, 100);
  latent.num_kv_heads = 2;
  EXPECT_NE(PlanDecodeAttention(latent, {}, kH200).error().message.find("1 kv head, not 2"),
            std::string::npos);

  for (const auto breakage : {+[](DecodeAttentionShape* s) { s->page_tokens = 48; },
                              +[](DecodeAttentionShape* s) { s->max_query_tokens = 9; },
                              +[](DecodeAttentionShape* s) { s->num_heads = 30; },
                              +[](DecodeAttentionShape* s) { s->num_sequences = 0; },
                              +[](DecodeAttentionShape* s) { s->max_kv_tokens = 0; },
                              +[](DecodeAttentionShape* s) {
                                s->num_sequences = 1 << 20;
                                s->max_kv_tokens = 1 << 20;
                              }}) {
    shape = Gqa(1, 100);
    breakage(&shape);
    plan = PlanDecodeAttention(shape, {}, kH200);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::kInvalidArgument);
    EXPECT_NE(plan.error().message.find("expected"), std::string::npos) << plan.error().message;
  }
}

TEST(PlanDecodeAttention, TileLists) {
  auto shape = Gqa(4, 8192);
  shape.tile_lists = true;
  auto plan = PlanDecodeAttention(shape, {}, kH200);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kernel.kind, KernelKind::kWarps);
  EXPECT_EQ(plan->line_size, 4 * 8);
  EXPECT_EQ(plan->num_parts, 132 * plan->kernel.blocks_per_sm);  // lists have their own kv heads
  EXPECT_EQ(plan->num_slots, plan->num_parts + plan->line_size);
  shape.max_lists = 100;
  plan = PlanDecodeAttention(shape, {}, kH200);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->line_size, 100);

  const auto refused = [](const DecodeAttentionShape& s, const DecodeAttentionOptions& options) {
    return PlanDecodeAttention(s, options, kH200).error().message;
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refused(shape, {.reduction = Reduction::kSpans}), "spans are counted from position 0");
  contains(refused(shape, {.portable = true}), "gqa_d128_portable (no tile lists)");
  shape.page_tokens = 16;
  contains(refused(shape, {}), "tile lists need pages of 64 or 128 tokens, not 16");
  shape = Mla(16, 1, 8192);
  shape.tile_lists = true;
  contains(refused(shape, {}), "mla_576_512 (no tile lists)");
  shape = Gqa(1, 8192);
  shape.max_lists = 3;
  contains(refused(shape, {}), "at most 3 tile lists for a cache read whole");
}

cuda::DecodeParams LegalParams(const DecodeAttentionPlan& plan) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  cuda::DecodeParams params;
  params.q = at(0x1000);
  params.q_pe = at(0x1400);
  params.q_token_stride = params.q_pe_token_stride = 4096;
  params.q_head_stride = params.q_pe_head_stride = 128;
  params.plane[0] = {at(0x10000), 65536, 2048, 256};
  params.plane[1] = {at(0x20000), 65536, 2048, 256};
  params.num_pages = 100;
  params.page_table = static_cast<int32_t*>(at(0x3000));
  params.page_table_stride = 1024;
  params.kv_lengths = static_cast<int32_t*>(at(0x4000));
  params.query_starts = static_cast<int32_t*>(at(0x5000));
  params.out = at(0x6000);
  params.out_token_stride = 4096;
  params.out_head_stride = 128;
  params.scale = 0.1f;
  BindDecodeWorkspace(plan, at(0x100000), &params);
  return params;
}

TEST(CheckDecodeParams, ManyLatentRowsAreStoredSixteenBytesAtATime) {
  const auto plan = PlanDecodeAttention(Mla(128, 2, 8192), {}, kH200);
  ASSERT_TRUE(plan);
  cuda::DecodeParams params = LegalParams(*plan);
  params.q_pe = params.q;
  EXPECT_TRUE(CheckDecodeParams(*plan, params));
  params.out_head_stride = 132;
  Status status = CheckDecodeParams(*plan, params);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("multiples of 8"), std::string::npos);
  params.out_head_stride = 128;
  params.out = static_cast<char*>(params.out) + 8;
  status = CheckDecodeParams(*plan, params);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("16-byte"), std::string::npos) << status.error().message;
}

TEST(CheckDecodeParams, NamesWhatIsWrong) {
  const auto plan = PlanDecodeAttention(Gqa(2, 8192), {}, kH200);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(CheckDecodeParams(*plan, LegalParams(*plan)));

  struct Breakage {
    void (*apply)(cuda::DecodeParams*);
    const char* says;
  };
  for (const Breakage& breakage : {
           Breakage{[](cuda::DecodeParams* p) { p->q = nullptr; }, "q is"},
           Breakage{[](cuda::DecodeParams* p) {
                      p->plane[1].base = static_cast<const char*>(p->plane[1].base) + 8;
                    },
                    "plane 1"},
           Breakage{[](cuda::DecodeParams* p) { p->plane[0].token_stride_bytes = 2056; },
                    "stride of 2056 bytes"},
           Breakage{[](cuda::DecodeParams* p) { p->q_head_stride = 100; }, "stride of 100"},
           Breakage{[](cuda::DecodeParams* p) { p->out_head_stride = 130; }, "130"},
           Breakage{[](cuda::DecodeParams* p) { p->num_pages = 0; }, "0 pages"},
           Breakage{[](cuda::DecodeParams* p) { p->page_table_stride = 100; }, "need 128"},
           Breakage{[](cuda::DecodeParams* p) { p->scale = 0; }, "scale 0"},
           Breakage{
               [](cuda::DecodeParams* p) { p->scale = std::numeric_limits<float>::quiet_NaN(); },
               "scale nan"},
       }) {
    cuda::DecodeParams params = LegalParams(*plan);
    breakage.apply(&params);
    const Status status = CheckDecodeParams(*plan, params);
    ASSERT_FALSE(status) << breakage.says;
    EXPECT_NE(status.error().message.find(breakage.says), std::string::npos)
        << status.error().message;
  }
}

// Walks every part as the kernel does and checks that each tile of each sequence is computed once,
// that slots are unique, in bounds and contiguous in key order, and that merges name them.
void CheckSchedule(const cuda::DecodeSplit& split, const std::vector<int32_t>& lengths,
                   int num_parts, int num_slots) {
  const int count = static_cast<int>(lengths.size());
  std::vector<int32_t> tiles{0};
  std::vector<int32_t> segments{0};
  for (const int32_t length : lengths) {
    tiles.push_back(tiles.back() + cuda::DecodeTiles(length));
    segments.push_back(segments.back() + cuda::DecodeSegments(split, length));
  }
  const bool equal = std::count(lengths.begin(), lengths.end(), lengths[0]) == count;
  const int used = cuda::DecodeUsedParts(tiles.back(), count, equal, num_parts);
  ASSERT_LE(used, num_parts);
  std::vector<int32_t> done(lengths.size(), 0);   // tiles computed, which come in order
  std::vector<int32_t> items(lengths.size(), 0);  // partial results so far
  int32_t longest = 0;
  for (int p = 0; p < num_parts; ++p) {
    cuda::DecodePart part =
        cuda::MakeDecodePart(split, tiles.data(), segments.data(), lengths.data(), count, used, p);
    longest = std::max(longest, part.num_tiles);
    int sequence = part.sequence;
    int tile = part.tile;
    int left = part.num_tiles;
    int slot = part.slot;
    while (left > 0) {
      const auto b = static_cast<size_t>(sequence);
      const int end = cuda::DecodeItemEnd(split, lengths[b], tile, left);
      const cuda::DecodeMerge merge =
          cuda::MakeDecodeMerge(split, tiles.data(), segments.data(), count, used, sequence);
      ASSERT_EQ(tile, done[b]);
      ASSERT_GT(end, tile);
      ASSERT_EQ(slot, merge.slot + items[b]);
      ASSERT_LT(items[b], merge.count);
      ASSERT_LT(slot, num_slots);
      if (split.max_segments != 0) {
        ASSERT_EQ(tile % cuda::DecodeSegmentTiles(split, lengths[b]), 0);
      }
      done[b] = end;
      ++items[b];
      left -= end - tile;
      const bool whole = end == cuda::DecodeTiles(lengths[b]);
      tile = whole ? 0 : end;
      ++slot;
      if (whole && left > 0) {
        do {
          ++sequence;
        } while (lengths[static_cast<size_t>(sequence)] == 0);
        if (split.max_segments == 0) slot = p + sequence;
      }
    }
  }
  for (int b = 0; b < count; ++b) {
    const auto i = static_cast<size_t>(b);
    ASSERT_EQ(done[i], cuda::DecodeTiles(lengths[i]));
    ASSERT_EQ(items[i],
              cuda::MakeDecodeMerge(split, tiles.data(), segments.data(), count, used, b).count);
  }
  if (split.max_segments == 0 && used > 0) {
    EXPECT_LE(longest, (tiles.back() + used - 1) / used);
  }
}

TEST(DecodeSchedule, EqualSequencesAreCutEvenly) {
  EXPECT_EQ(cuda::DecodeUsedParts(128 * 128, 128, true, 132), 128);  // one each
  EXPECT_EQ(cuda::DecodeUsedParts(64 * 64, 64, true, 33), 32);       // two a part
  EXPECT_EQ(cuda::DecodeUsedParts(8 * 128, 8, true, 132), 128);      // 16 parts each
  EXPECT_EQ(cuda::DecodeUsedParts(128, 1, true, 132), 128);          // no part without a tile
  EXPECT_EQ(cuda::DecodeUsedParts(70 * 10, 70, true, 132), 132);     // 70 would idle too many
  EXPECT_EQ(cuda::DecodeUsedParts(128 * 128, 128, false, 132), 132);
}

TEST(DecodeSchedule, EveryTileOnceUnderEveryPlan) {
  std::vector<int32_t> unequal(64, 1024);
  unequal[7] = 65536;
  const std::vector<std::vector<int32_t>> batches = {{1},
                                                     {0},
                                                     {8192},
                                                     {8191, 1},
                                                     {0, 0, 300, 0},
                                                     {1, 63, 64, 65, 127, 255, 256, 257, 0, 4097},
                                                     {131072},
                                                     unequal,
                                                     std::vector<int32_t>(300, 65)};
  for (const auto& lengths : batches) {
    for (const Reduction reduction :
         {Reduction::kBalanced, Reduction::kBatchInvariant, Reduction::kSpans}) {
      for (const int heads : {1, 2, 8}) {
        DecodeAttentionShape shape = Gqa(static_cast<int>(lengths.size()), 131072);
        shape.num_kv_heads = heads;
        const auto plan = PlanDecodeAttention(shape, {.reduction = reduction}, kH200);
        ASSERT_TRUE(plan);
        SCOPED_TRACE(plan->Describe());
        ASSERT_NO_FATAL_FAILURE(
            CheckSchedule(plan->split, lengths, plan->num_parts, plan->num_slots));
      }
    }
  }
}

TEST(DecodeSchedule, SegmentsDependOnTheSequenceAlone) {
  const auto small =
      PlanDecodeAttention(Gqa(1, 131072), {.reduction = Reduction::kBatchInvariant}, kH200);
  const auto large =
      PlanDecodeAttention(Gqa(128, 131072), {.reduction = Reduction::kBatchInvariant}, kH200);
  ASSERT_TRUE(small && large);
  for (const int length : {1, 256, 257, 8192, 10000, 131072}) {
    const int tiles = cuda::DecodeSegmentTiles(small->split, length);
    EXPECT_EQ(tiles, cuda::DecodeSegmentTiles(large->split, length));
    EXPECT_EQ(tiles % 4, 0);  // whole spans of 256 keys
    EXPECT_LE(cuda::DecodeSegments(small->split, length), small->split.max_segments);
  }
}

TEST(PlanDecodeAttention, LatentsOnAnyGpu) {
  const DecodeAttentionShape few = {.num_sequences = 64,
                                    .num_heads = 16,
                                    .num_kv_heads = 1,
                                    .head_dim_qk = 576,
                                    .head_dim_v = 512,
                                    .max_kv_tokens = 8192};
  DecodeAttentionShape many = few;
  many.num_heads = 128;
  // Of compute capability 8.6 and 8.9 a block has 99 KiB.
  const GpuLimits small = {
      .compute_major = 8, .compute_minor = 9, .num_sms = 142, .shared_bytes_per_block = 101376};
  for (const GpuLimits& gpu : {small, kH200}) {
    const auto narrow = PlanDecodeAttention(few, {.portable = true}, gpu);
    ASSERT_TRUE(narrow) << narrow.error().message;
    EXPECT_EQ(narrow->kernel.kind, KernelKind::kPortable);
    EXPECT_EQ(narrow->rows, 16);
    EXPECT_EQ(narrow->num_parts, gpu.num_sms * (gpu.compute_major == 9 ? 2 : 1));
    EXPECT_FALSE(narrow->merge_inside);
    const auto wide = PlanDecodeAttention(many, {.portable = true}, gpu);
    ASSERT_TRUE(wide);
    EXPECT_EQ(wide->rows, 32);
    EXPECT_EQ(wide->row_tiles, 4);
    EXPECT_EQ(wide->num_parts, gpu.num_sms / 4);
  }
  EXPECT_NE(PlanDecodeAttention(few, {}, kH200)->kernel.kind, KernelKind::kPortable);
  DecodeAttentionShape alone = few;
  alone.num_sequences = 1;  // parts of a second block would be too short
  EXPECT_EQ(PlanDecodeAttention(alone, {.portable = true}, kH200)->num_parts, kH200.num_sms);
}

}  // namespace
}  // namespace fathom::ops
