// The decode kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <limits>

#include "decode_check.h"
#include "emulator/simt.h"
#include "tile_lists.h"

namespace fathom::cuda_test {
namespace {

using kernels::cuda::CacheCode;

TEST(EmulatedDecode, Gqa) {
  for (const uint64_t seed : Seeds({1, 2, 3})) {
    Check({.name = "odd lengths", .kv_lengths = {1, 63, 65, 0, 200}}, seed);
    Check({.name = "d128, pages of 16",
           .heads = 8,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {130, 300},
           .page_tokens = 16,
           .query_tokens = {2, 1}},
          seed);
    Check({.name = "spans",
           .heads = 6,
           .kv_lengths = {600, 77},
           .page_tokens = 128,
           .reduction = ops::Reduction::kSpans},
          seed);
  }
}

// Heads of 64 and 128, short pages, several queries, a group of more than one tile of rows.
void CheckHeads(const DecodeCheck& c, uint64_t seed) {
  DecodeCheck odd = c;
  odd.name = "odd lengths";
  odd.kv_lengths = {1, 63, 65, 0, 200};
  Check(odd, seed);
  DecodeCheck merged = c;
  merged.name = "d128, pages of 16, merged";
  merged.heads = 8;
  merged.dim_qk = merged.dim_v = 128;
  merged.kv_lengths = {130, 700, 8};
  merged.page_tokens = 16;
  merged.query_tokens = {2, 1, 4};
  merged.num_sms = 8;
  Check(merged, seed);
  DecodeCheck spans = c;
  spans.name = "group of 20, spans, large logits";
  spans.heads = 20;
  spans.kv_heads = 1;
  spans.kv_lengths = {600, 77};
  spans.page_tokens = 128;
  spans.reduction = ops::Reduction::kSpans;
  spans.logit_scale = 40;
  Check(spans, seed);
}

class EmulatedFreeWarps : public testing::TestWithParam<CacheCode> {};

std::string CodeName(const testing::TestParamInfo<CacheCode>& info) {
  constexpr const char* kNames[] = {"Bf16", "Int8", "E4m3"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Codes, EmulatedFreeWarps,
                         testing::Values(CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3),
                         CodeName);

TEST_P(EmulatedFreeWarps, AgreeWithFloat64) {
  for (const uint64_t seed : Seeds({1, 2, 3})) {
    CheckHeads({.kernel = ops::DecodeKernel::kWarps, .code = GetParam()}, seed);
  }
}

TEST(EmulatedDecode, TileLists) {
  using ops::sparse::HeadRole;
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8}) {
    for (const uint64_t seed : Seeds({1, 2, 3})) {
      Check({.name = "window and anchors",
             .kv_lengths = {1, 700, 65, 300},
             .code = code,
             .policy = {{.heads = {{HeadRole::kLocal, 100, 10}}}}},
            seed);
      Check({.name = "window and anchors, several queries",
             .heads = 8,
             .dim_qk = 128,
             .dim_v = 128,
             .kv_lengths = {900, 130},
             .page_tokens = 128,
             .query_tokens = {3, 1},
             .code = code,
             .policy = {{.heads = {{HeadRole::kLocal, 63, 70}}}}},
            seed);
      Check({.name = "blocks",
             .kv_lengths = {700, 640, 100},
             .code = code,
             .policy = {{.heads = {{HeadRole::kBlocks}},
                         .blocks = MakeLists({{0, 3, 10}, {}, {1}})}}},
            seed);
      Check({.name = "policy table",
             .heads = 8,
             .kv_heads = 4,
             .kv_lengths = {2000, 700, 64},
             .query_tokens = {1, 4, 2},
             .code = code,
             .policy = PolicyTable()},
            seed);
      Check({.name = "anchor lists and blocks by head, rows of two tiles",
             .heads = 20,
             .kv_heads = 1,
             .kv_lengths = {900, 130},
             .query_tokens = {2, 1},
             .code = code,
             .policy = {{.heads = {{HeadRole::kLocal, 20, 5}},
                         .anchors = MakeLists({{100, 101, 640}, {7}})}}},
            seed);
    }
  }
  Check({.name = "anchors by head",
         .heads = 4,
         .kv_lengths = {900, 130},
         .policy = {{.heads = {{HeadRole::kLocal, 20, 5}},
                     .anchors = MakeLists({{100, 640}, {3}, {}, {8, 500}, {7}, {}, {}, {90}})}}},
        4);
}

TEST(EmulatedDecode, Float16) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const auto kernel : {ops::DecodeKernel::kWarps, ops::DecodeKernel::kWarpgroups}) {
      CheckHeads({.kernel = kernel, .float16 = true}, seed);
    }
    Check({.name = "window and anchors",
           .kv_lengths = {1, 700, 65},
           .policy = {{.heads = {{ops::sparse::HeadRole::kLocal, 100, 10}}}},
           .float16 = true},
          seed);
    Check({.name = "learned rows",
           .kv_lengths = {1, 700, 65},
           .policy = {{.heads = {{ops::sparse::HeadRole::kLocal, 100}}, .learned_rows = 100}},
           .float16 = true},
          seed);
  }
}

TEST(EmulatedDecode, Float16OverQuantised) {
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const uint64_t seed : Seeds({1, 2, 3})) {
      CheckHeads({.code = code, .float16 = true}, seed);
      Check({.name = "window and anchors, learned rows",
             .kv_lengths = {1, 700, 65},
             .code = code,
             .policy = {{.heads = {{ops::sparse::HeadRole::kLocal, 100, 10}},
                         .learned_rows = seed == 1 ? 100 : 0}},
             .float16 = true},
            seed);
      DecodeCheck mla = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .code = code, .float16 = true};
      mla.name = "mla 16";
      mla.heads = 16;
      mla.kv_lengths = {1, 65, 0, 257};
      mla.num_sms = 3;
      Check(mla, seed);
      mla.name = "mla 20, several queries, pages of 16, large logits";
      mla.heads = 20;
      mla.kv_lengths = {70, 130};
      mla.page_tokens = 16;
      mla.query_tokens = {2, 1};
      mla.num_sms = 6;
      mla.logit_scale = 20;
      Check(mla, seed);
    }
  }
}

// Integers have no infinity. The other rows of a tile do not notice.
TEST(EmulatedDecode, QueriesThatAreNotFiniteAreSeenInTheOutput) {
  if (simt::kWatched) return;  // the accesses of Float16OverQuantised
  for (const bool latent : {false, true}) {
    for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
      for (const bool float16 : {false, true}) {
        DecodeCheck c = {.name = "zeros", .heads = 8, .kv_heads = 1, .kv_lengths = {70, 300}};
        c.query_tokens = {1, 2};
        c.code = code;
        c.float16 = float16;
        if (latent) {
          c.dim_qk = 576;
          c.dim_v = 512;
        }
        c.broken_row = 13;
        std::vector<uint16_t> others;
        Check(c, 6, &others);
        const auto row = [&](std::vector<uint16_t>& out) { return out.begin() + 13 * c.dim_v; };
        for (const float broken : {INFINITY, -INFINITY, NAN}) {
          c.name = std::isnan(broken) ? "NaN" : broken > 0 ? "infinity" : "-infinity";
          c.broken = broken;
          std::vector<uint16_t> out;
          Check(c, 6, &out);
          std::copy(row(others), row(others) + c.dim_v, row(out));
          EXPECT_EQ(out, others) << c.name << (latent ? ", latents" : ", heads");
        }
      }
    }
  }
}

// What float16 probabilities could not hold: too large, or so small that they would be zeros.
void CheckWeights(DecodeCheck c, Weights sink = Weights::kSink) {
  for (const Weights weights : {sink, Weights::kWaiting, Weights::kRising, Weights::kSteepRise}) {
    for (const bool float16 : {false, true}) {
      if (simt::kWatched && !float16) continue;  // the same accesses
      c.name = bench::IsSink(weights)         ? "a sink"
               : weights == Weights::kWaiting ? "weights that a base waits for"
               : weights == Weights::kRising  ? "rising weights"
                                              : "steeply rising weights";
      c.weights = weights;
      c.value_scale = bench::ValueScale(weights);
      c.num_sms = weights == Weights::kWaiting ? 1 : 4;  // a part has many tiles
      c.float16 = float16;
      Check(c, 5);
    }
  }
}

TEST(EmulatedDecode, UnevenWeights) {
  const DecodeCheck heads = {.kv_lengths = {330, 1, 64}};
  DecodeCheck c = heads;
  c.kernel = ops::DecodeKernel::kWarps;
  CheckWeights(c);
  c.kernel = ops::DecodeKernel::kWarpgroups;
  CheckWeights(c, Weights::kDeepSink);
  c = heads;
  c.portable = true;
  CheckWeights(c);
  DecodeCheck mla = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .kv_lengths = {330, 1, 64}};
  mla.portable = true;
  mla.heads = 16;
  CheckWeights(mla);
  mla.portable = false;
  CheckWeights(mla, Weights::kDeepSink);
  mla.heads = 64;
  CheckWeights(mla);
  if (simt::kWatched) return;  // the accesses of Float16OverQuantised
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    c = heads;
    c.code = code;
    CheckWeights(c);
    mla.heads = 16;
    mla.code = code;
    CheckWeights(mla);
  }
}

TEST(EmulatedDecode, Float16Portable) {
  for (const uint64_t seed : Seeds({1, 2})) {
    Check({.name = "odd lengths",
           .kv_lengths = {1, 63, 65, 0, 200},
           .portable = true,
           .float16 = true},
          seed);
    Check({.name = "d128, pages of 16, large logits",
           .heads = 20,
           .kv_heads = 1,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {130, 300, 8},
           .page_tokens = 16,
           .query_tokens = {2, 1, 4},
           .portable = true,
           .logit_scale = 40,
           .float16 = true},
          seed);
    for (const int heads : {4, 40}) {
      Check({.name = "latents",
             .heads = heads,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {1, 31, 0, 33, 257},
             .portable = true,
             .num_sms = 3,
             .float16 = true},
            seed);
    }
  }
}

TEST(EmulatedDecode, LearnedRows) {
  using ops::sparse::HeadRole;
  for (const uint64_t seed : {1, 2}) {
    for (const int rows : {1, 64, 100, 256}) {
      Check({.name = "learned rows",
             .heads = 4,
             .kv_lengths = {1, 700, 65},
             .query_tokens = {1, 3, 1},
             .code = rows == 100 ? CacheCode::kInt8 : CacheCode::kBf16,
             .policy = {{.heads = {{HeadRole::kLocal, 100},
                                   {HeadRole::kOff},
                                   {HeadRole::kGlobal},
                                   {HeadRole::kLocal, 0}},
                         .learned_rows = rows}}},
            seed);
    }
  }
}

TEST(EmulatedDecode, Portable) {
  for (const uint64_t seed : Seeds({1, 2, 3})) {
    Check({.name = "odd lengths", .kv_lengths = {1, 63, 65, 0, 200}, .portable = true}, seed);
    Check({.name = "d128, pages of 16",
           .heads = 8,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {130, 300, 8},
           .page_tokens = 16,
           .query_tokens = {2, 1, 4},
           .portable = true},
          seed);
    Check({.name = "group of 20, spans",
           .heads = 20,
           .kv_heads = 1,
           .kv_lengths = {600, 77},
           .page_tokens = 128,
           .reduction = ops::Reduction::kSpans,
           .portable = true},
          seed);
  }
}

// Which kernel merges depends on the longest sequence of the batch; the bits may not.
TEST(EmulatedDecode, WarpsAndBlocksMergeSegmentsAlike) {
  for (const bool latent : {false, true}) {
    DecodeCheck c = {
        .name = "a warp", .kv_lengths = {5300, 700}, .reduction = ops::Reduction::kSpans};
    if (latent) {
      c.heads = 16;
      c.kv_heads = 1;
      c.dim_qk = 576;
      c.dim_v = 512;
      c.kv_lengths = {2900, 300};
    }
    std::vector<uint16_t> by_warp;
    std::vector<uint16_t> by_block;
    c.warp_merge_partials = 1024;
    Check(c, 3, &by_warp);
    c.name = "a block";
    c.warp_merge_partials = 0;
    Check(c, 3, &by_block);
    EXPECT_EQ(by_warp, by_block) << (latent ? "latents" : "heads of 64");
  }
}

}  // namespace
}  // namespace fathom::cuda_test
