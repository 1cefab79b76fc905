// The decode kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "emulator/simt.h"
#include "harness.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/decode_attention.h"

namespace fathom::cuda_test {
namespace {

using kernels::cuda::CacheCode;

struct Case {
  const char* name = "";
  int heads = 4;
  int kv_heads = 2;
  int dim_qk = 64;
  int dim_v = 64;
  std::vector<int32_t> kv_lengths;
  int page_tokens = 64;
  std::vector<int32_t> query_tokens = {};  // empty: one each
  ops::Reduction reduction = ops::Reduction::kBalanced;
  ops::DecodeKernel kernel = ops::DecodeKernel::kAuto;
  CacheCode code = CacheCode::kBf16;
  bool portable = false;
  int num_sms = 4;
  int warp_merge_partials = 16;
  float logit_scale = 3;
  int window = INT32_MAX;  // sparse: tiles of 64 that it and the anchors reach are listed,
  int anchors = 0;
  std::vector<std::vector<int32_t>> tiles = {};  // or these, of each sequence
};

void Check(const Case& c, uint64_t seed) {
  SCOPED_TRACE(std::string(c.name) + ", seed " + std::to_string(seed));
  Noise noise(static_cast<uint32_t>(seed));
  simt::SetSeed(seed);
  const bool latent = c.dim_qk > c.dim_v;
  const size_t count = c.kv_lengths.size();
  std::vector<int32_t> starts = {0};
  int max_queries = 1;
  for (size_t b = 0; b < count; ++b) {
    const int n = c.query_tokens.empty() ? 1 : c.query_tokens[b];
    max_queries = std::max(max_queries, n);
    starts.push_back(starts.back() + n);
  }
  const int tokens = starts.back();
  const PageTable table(c.kv_lengths, c.page_tokens, noise);
  const int dims[2] = {latent ? c.dim_v : c.dim_qk, latent ? c.dim_qk - c.dim_v : c.dim_v};
  HostPlane planes[2];
  for (int i = 0; i < 2; ++i) {
    planes[i] = HostPlane(table, c.kv_lengths, c.page_tokens, c.kv_heads, dims[i], 1, noise);
  }
  const auto q = noise.Bf16(static_cast<size_t>(tokens) * c.heads * c.dim_qk, c.logit_scale);
  std::vector<uint16_t> out(static_cast<size_t>(tokens) * c.heads * c.dim_v, 0xffff);
  std::vector<float> lse(static_cast<size_t>(tokens) * c.heads, NAN);

  // Lists of the tiles that the first query may see, and the others then see too.
  const bool sparse = c.window != INT32_MAX || !c.tiles.empty();
  std::vector<std::vector<int32_t>> lists = c.tiles;
  if (sparse && lists.empty()) {
    for (size_t b = 0; b < count; ++b) {
      const int first = c.kv_lengths[b] - (starts[b + 1] - starts[b]);
      lists.emplace_back();
      for (int tile = 0; tile * 64 < c.kv_lengths[b]; ++tile) {
        if (tile * 64 < c.anchors || first - (tile * 64 + 63) <= c.window) {
          lists.back().push_back(tile);
        }
      }
    }
  }
  std::vector<int32_t> visited, list_values;
  constexpr int kListStride = 64;
  for (const auto& list : lists) {
    visited.push_back(static_cast<int32_t>(list.size()) * 64);
    list_values.insert(list_values.end(), list.begin(), list.end());
    list_values.resize(visited.size() * kListStride, kPoisonPage);
  }
  const auto plan = ops::PlanDecodeAttention(
      {.num_sequences = static_cast<int32_t>(count),
       .max_query_tokens = max_queries,
       .num_heads = c.heads,
       .num_kv_heads = c.kv_heads,
       .head_dim_qk = c.dim_qk,
       .head_dim_v = c.dim_v,
       .page_tokens = c.page_tokens,
       .max_kv_tokens = std::max(1, *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end())),
       .code = c.code,
       .tile_lists = sparse},
      {.reduction = c.reduction,
       .kernel = c.kernel,
       .portable = c.portable,
       .tuning = {.warp_merge_partials = c.warp_merge_partials}},
      {.compute_major = 9, .num_sms = c.num_sms, .shared_bytes_per_block = 232448});
  ASSERT_TRUE(plan) << plan.error().message;
  std::vector<uint8_t> memory(static_cast<size_t>(plan->workspace_bytes) + 256, 0xff);
  auto* workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  kernels::cuda::DecodeParams p;
  p.q = q.data();
  p.q_token_stride = int64_t{c.heads} * c.dim_qk;
  p.q_head_stride = c.dim_qk;
  if (latent) {
    p.q_pe = q.data() + c.dim_v;
    p.q_pe_token_stride = p.q_token_stride;
    p.q_pe_head_stride = p.q_head_stride;
  }
  QuantisedPlane quantised[2];
  for (int i = 0; i < 2; ++i) {
    p.plane[i] = planes[i].View();
    if (c.code == CacheCode::kBf16) continue;
    if (latent) {
      if (i == 1) {
        quantised[0] = QuantisedPlane(&planes[0], planes[1], c.code, table, c.kv_lengths);
        p.plane[0] = quantised[0].TokenView(0);
        p.scales[0] = quantised[0].TokenView(512);
        p.plane[1] = quantised[0].TokenView(528);
      }
      continue;
    }
    quantised[i] = QuantisedPlane(&planes[i], c.code, table, c.kv_lengths);
    p.plane[i] = quantised[i].View();
    p.scales[i] = quantised[i].Scales();
  }
  p.num_pages = table.num_pages;
  p.page_table = table.entries.data();
  p.page_table_stride = table.stride;
  p.kv_lengths = c.kv_lengths.data();
  p.query_starts = starts.data();
  p.out = out.data();
  p.out_token_stride = int64_t{c.heads} * c.dim_v;
  p.out_head_stride = c.dim_v;
  p.lse = lse.data();
  p.scale = 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  if (sparse) {
    p.tile_lists = list_values.data();
    p.tile_list_stride = kListStride;
    p.visited_tokens = visited.data();
    p.window = c.window;
    p.anchors = c.anchors;
  }
  ops::BindDecodeWorkspace(*plan, workspace, &p);
  const Status legal = ops::CheckDecodeParams(*plan, p);
  ASSERT_TRUE(legal) << legal.error().message;
  ASSERT_EQ(kernels::cuda::PrepareDecode(p, nullptr), cudaSuccess);
  ASSERT_EQ(kernels::cuda::RunDecode(c.dim_qk, c.dim_v, plan->rows, p, nullptr), cudaSuccess);

  Errors errors;
  for (size_t b = 0; b < count; ++b) {
    const int queries = starts[b + 1] - starts[b];
    for (int j = 0; j < queries; ++j) {
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads);
        const size_t row = static_cast<size_t>(starts[b] + j) * c.heads + h;
        const auto want = AttendRow(
            c.kv_lengths[b] - (queries - 1 - j), c.dim_v,
            [&](int key) {
              const int position = c.kv_lengths[b] - queries + j;
              const bool listed = !sparse || std::find(lists[b].begin(), lists[b].end(),
                                                       key / 64) != lists[b].end();
              if (!listed || (position - key > c.window && key >= c.anchors)) {
                return -std::numeric_limits<double>::infinity();
              }
              double sum = 0;
              for (int d = 0; d < c.dim_qk; ++d) {
                const int plane = d < dims[0] ? 0 : 1;
                sum += double{Bf16ToF32(q[row * c.dim_qk + d])} *
                       planes[plane].Value(table, b, key, kv_head, plane == 0 ? d : d - dims[0]);
              }
              return sum * p.scale;
            },
            [&](int key, int d) {
              return planes[latent ? 0 : 1].Value(table, b, key, kv_head, d);
            });
        errors.Add(want, out.data() + row * c.dim_v, lse[row]);
      }
    }
  }
  EXPECT_LE(errors.out(), 5e-3);
  EXPECT_LE(errors.lse(), 1e-3);
}

TEST(EmulatedDecode, Gqa) {
  for (const uint64_t seed : {1, 2, 3}) {
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

class EmulatedFreeWarps : public testing::TestWithParam<CacheCode> {};

std::string CodeName(const testing::TestParamInfo<CacheCode>& info) {
  constexpr const char* kNames[] = {"Bf16", "Int8", "E4m3"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Codes, EmulatedFreeWarps,
                         testing::Values(CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3),
                         CodeName);

TEST_P(EmulatedFreeWarps, AgreeWithFloat64) {
  const CacheCode code = GetParam();
  for (const uint64_t seed : {1, 2, 3}) {
    Check({.name = "odd lengths",
           .kv_lengths = {1, 63, 65, 0, 200},
           .kernel = ops::DecodeKernel::kWarps,
           .code = code},
          seed);
    Check({.name = "d128, pages of 16",
           .heads = 8,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {130, 300, 8},
           .page_tokens = 16,
           .query_tokens = {2, 1, 4},
           .kernel = ops::DecodeKernel::kWarps,
           .code = code},
          seed);
    Check({.name = "group of 20, spans",
           .heads = 20,
           .kv_heads = 1,
           .kv_lengths = {600, 77},
           .page_tokens = 128,
           .reduction = ops::Reduction::kSpans,
           .kernel = ops::DecodeKernel::kWarps,
           .code = code,
           .logit_scale = 40},
          seed);
  }
}

TEST(EmulatedDecode, MlaQuantised) {
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Check({.name = "mla 16",
             .heads = 16,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {1, 65, 0, 257},
             .code = code,
             .num_sms = 3},
            seed);
      Check({.name = "mla 20, several queries, pages of 16",
             .heads = 20,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {70, 130},
             .page_tokens = 16,
             .query_tokens = {2, 1},
             .code = code,
             .num_sms = 6,
             .logit_scale = 20},
            seed);
    }
  }
}

TEST(EmulatedDecode, TileLists) {
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Check({.name = "window and anchors",
             .kv_lengths = {1, 700, 65, 0, 300},
             .code = code,
             .window = 100,
             .anchors = 10},
            seed);
      Check({.name = "window and anchors, several queries",
             .heads = 8,
             .dim_qk = 128,
             .dim_v = 128,
             .kv_lengths = {900, 130},
             .page_tokens = 128,
             .query_tokens = {3, 1},
             .code = code,
             .window = 63,
             .anchors = 70},
            seed);
      Check({.name = "blocks",
             .kv_lengths = {700, 640, 100},
             .code = code,
             .tiles = {{0, 3, 10}, {}, {1}}},
            seed);
    }
  }
}

TEST(EmulatedDecode, Portable) {
  for (const uint64_t seed : {1, 2, 3}) {
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

TEST(EmulatedDecode, MlaSixteenHeads) {
  for (const uint64_t seed : {4, 5}) {
    Check({.name = "mla 16",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1, 65, 0, 257},
           .num_sms = 3},
          seed);
    for (const size_t count :
         {3, 1}) {  // too many rows for a second kernel that rehearses, and not
      Check({.name = "mla 16, merged",
             .heads = 16,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = std::vector<int32_t>(count, 400),
             .num_sms = 7,
             .warp_merge_partials = 0},
            seed);
    }
  }
}

TEST(EmulatedDecode, MlaManyHeads) {
  for (const uint64_t seed : {6, 7}) {
    Check({.name = "mla 128",
           .heads = 128,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1, 65, 0, 257},
           .num_sms = 4},
          seed);
    Check({.name = "mla 100 heads, 2 queries",
           .heads = 100,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {70, 130},
           .query_tokens = {2, 1},
           .num_sms = 8},
          seed);
    Check({.name = "mla 128, merged inside",
           .heads = 128,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {500, 0, 70},
           .num_sms = 9,
           .warp_merge_partials = 0},
          seed);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
