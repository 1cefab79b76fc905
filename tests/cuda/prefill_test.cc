// The prefill kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "emulator/simt.h"
#include "harness.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/prefill_attention.h"

namespace fathom::cuda_test {
namespace {

struct Case {
  const char* name = "";
  int heads = 2;
  int kv_heads = 1;
  int dim_qk = 64;
  int dim_v = 64;
  bool causal = true;
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> query_tokens = {};  // empty: as many as keys
  int page_tokens = 64;
  int window = INT32_MAX;
  int anchors = 0;
  int num_sms = 2;
  float logit_scale = 3;
  bool portable = false;
};

void Check(const Case& c, uint64_t seed) {
  SCOPED_TRACE(std::string(c.name) + ", seed " + std::to_string(seed));
  Noise noise(static_cast<uint32_t>(seed));
  simt::SetSeed(seed);
  const size_t count = c.kv_lengths.size();
  const std::vector<int32_t>& queries = c.query_tokens.empty() ? c.kv_lengths : c.query_tokens;
  std::vector<int32_t> starts = {0};
  for (const int32_t n : queries) starts.push_back(starts.back() + n);
  const int tokens = starts.back();
  const int longest = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());
  const PageTable table(c.kv_lengths, c.page_tokens, noise);
  const HostPlane k(table, c.kv_lengths, c.page_tokens, c.kv_heads, c.dim_qk, 1, noise);
  const HostPlane v(table, c.kv_lengths, c.page_tokens, c.kv_heads, c.dim_v, 1, noise);
  const auto q = noise.Bf16(static_cast<size_t>(tokens) * c.heads * c.dim_qk, c.logit_scale);
  std::vector<uint16_t> out(static_cast<size_t>(tokens) * c.heads * c.dim_v, 0xffff);
  std::vector<float> lse(static_cast<size_t>(tokens) * c.heads, NAN);

  const auto plan = ops::PlanPrefillAttention(
      {.num_sequences = static_cast<int32_t>(count),
       .num_tokens = tokens,
       .max_kv_tokens = longest,
       .num_heads = c.heads,
       .num_kv_heads = c.kv_heads,
       .head_dim_qk = c.dim_qk,
       .head_dim_v = c.dim_v,
       .page_tokens = c.page_tokens,
       .causal = c.causal,
       .window = c.window,
       .anchors = c.anchors},
      {.portable = c.portable},
      {.compute_major = 9, .num_sms = c.num_sms, .shared_bytes_per_block = 232448});
  ASSERT_TRUE(plan) << plan.error().message;
  std::vector<uint8_t> memory(static_cast<size_t>(plan->workspace_bytes) + 256, 0xff);
  auto* workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  std::fill_n(workspace, plan->zeroed_bytes, uint8_t{0});
  kernels::cuda::PrefillParams p;
  p.q = q.data();
  p.q_token_stride = int64_t{c.heads} * c.dim_qk;
  p.q_head_stride = c.dim_qk;
  p.num_tokens = tokens;
  p.k = k.View();
  p.v = v.View();
  p.num_pages = table.num_pages;
  p.page_tokens = c.page_tokens;
  p.page_table = table.entries.data();
  p.page_table_stride = table.stride;
  p.kv_lengths = c.kv_lengths.data();
  p.query_starts = starts.data();
  p.out = out.data();
  p.out_token_stride = int64_t{c.heads} * c.dim_v;
  p.out_head_stride = c.dim_v;
  p.lse = lse.data();
  p.scale = 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  ops::BindPrefillWorkspace(*plan, workspace, &p);
  const Status legal = ops::CheckPrefillParams(*plan, p);
  ASSERT_TRUE(legal) << legal.error().message;
  ASSERT_EQ(kernels::cuda::PreparePrefill(p, plan->rows, longest, nullptr), cudaSuccess);
  ASSERT_EQ(kernels::cuda::RunPrefill(c.dim_qk, c.dim_v, p, nullptr), cudaSuccess);
  EXPECT_EQ(*p.next, 0);

  Errors errors;
  for (size_t b = 0; b < count; ++b) {
    for (int j = 0; j < queries[b]; ++j) {
      const int position = c.kv_lengths[b] - queries[b] + j;
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads);
        const size_t row = static_cast<size_t>(starts[b] + j) * c.heads + h;
        const auto want = AttendRow(
            c.causal ? position + 1 : c.kv_lengths[b], c.dim_v,
            [&](int key) {
              if (c.causal && position - key > c.window && key >= c.anchors) {
                return -std::numeric_limits<double>::infinity();
              }
              double sum = 0;
              for (int d = 0; d < c.dim_qk; ++d) {
                sum += double{Bf16ToF32(q[row * c.dim_qk + d])} *
                       Bf16ToF32(k.Row(table, b, key, kv_head)[d]);
              }
              return sum * p.scale;
            },
            [&](int key, int d) { return double{Bf16ToF32(v.Row(table, b, key, kv_head)[d])}; });
        errors.Add(want, out.data() + row * c.dim_v, lse[row]);
      }
    }
  }
  EXPECT_LE(errors.out(), 5e-3);
  EXPECT_LE(errors.lse(), 1e-3);
}

class EmulatedPrefill : public testing::TestWithParam<bool> {
 protected:
  static void Check(Case c, uint64_t seed) {
    c.portable = GetParam();
    cuda_test::Check(c, seed);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedPrefill, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Sm80" : "Sm90");
});

TEST_P(EmulatedPrefill, Causal) {
  for (const uint64_t seed : {1, 2}) {
    Check({.name = "odd lengths", .kv_lengths = {1, 63, 0, 65, 257}}, seed);
    Check({.name = "d128", .dim_qk = 128, .dim_v = 128, .kv_lengths = {300, 1}}, seed);
    Check({.name = "192/128", .dim_qk = 192, .dim_v = 128, .kv_lengths = {260}, .page_tokens = 16},
          seed);
    Check({.name = "chunk",
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {333, 5},
           .query_tokens = {70, 3}},
          seed);
    Check({.name = "large logits", .kv_lengths = {300}, .logit_scale = 60}, seed);
  }
}

TEST_P(EmulatedPrefill, Full) {
  Check({.name = "full", .dim_qk = 128, .dim_v = 128, .causal = false, .kv_lengths = {200, 30}}, 3);
  Check({.name = "full d64", .causal = false, .kv_lengths = {300}}, 4);
}

TEST_P(EmulatedPrefill, WindowAndAnchors) {
  for (const uint64_t seed : {5, 6}) {
    Check({.name = "window", .kv_lengths = {700}, .window = 100, .anchors = 10}, seed);
    Check({.name = "window, two tiles of anchors",
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {900, 40},
           .query_tokens = {300, 40},
           .window = 130,
           .anchors = 140},
          seed);
    Check({.name = "window, no anchors", .kv_lengths = {600}, .window = 63}, seed);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
