// The prefill kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "emulator/simt.h"
#include "harness.h"
#include "ops/cuda/prefill_attention.h"
#include "tile_lists.h"

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
  std::optional<ops::sparse::Policy> policy = {};
  bool float16 = false;
  Weights weights = Weights::kRandom;
  float last_queries = 0;  // not 0: elements of the last sequence's, which is then not compared
};

void Check(const Case& c, uint64_t seed, std::vector<uint16_t>* bits = nullptr) {
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
  HostPlane k(table, c.kv_lengths, c.page_tokens, c.kv_heads, c.dim_qk, 1, noise);
  HostPlane v(table, c.kv_lengths, c.page_tokens, c.kv_heads, c.dim_v, bench::ValueScale(c.weights),
              noise);
  if (c.float16) {
    k.ToFloat16();
    v.ToFloat16();
  }
  auto q =
      noise.Elements(static_cast<size_t>(tokens) * c.heads * c.dim_qk, c.logit_scale, c.float16);
  const bool weighted = c.weights != Weights::kRandom;
  const float scale =
      weighted ? bench::kWeightsScale : 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  if (weighted) {
    for (size_t i = 0; i < q.size(); ++i) {
      q[i] = bench::F32ToElement(static_cast<int>(i) % c.dim_qk == 0 ? 1.f : 0.f, c.float16);
    }
    for (size_t b = 0; b < count; ++b) {
      for (int h = 0; h < c.kv_heads; ++h) {
        for (int t = 0; t < c.kv_lengths[b]; ++t) {
          k.Set(table, b, t, h, 0, bench::KeyElement(c.weights, t, 0));
        }
        for (int d = 0; d < c.dim_v && c.kv_lengths[b] > 0; ++d) v.Set(table, b, 0, h, d, 0);
      }
    }
  }
  if (c.last_queries != 0) {
    std::fill(q.begin() + ptrdiff_t{starts[count - 1]} * c.heads * c.dim_qk, q.end(),
              bench::F32ToElement(c.last_queries, c.float16));
  }
  std::vector<uint16_t> out(static_cast<size_t>(tokens) * c.heads * c.dim_v, 0xffff);
  std::vector<float> lse(static_cast<size_t>(tokens) * c.heads, NAN);

  const ops::PrefillAttentionShape shape = {.num_sequences = static_cast<int32_t>(count),
                                            .num_tokens = tokens,
                                            .max_kv_tokens = longest,
                                            .num_heads = c.heads,
                                            .num_kv_heads = c.kv_heads,
                                            .head_dim_qk = c.dim_qk,
                                            .head_dim_v = c.dim_v,
                                            .page_tokens = c.page_tokens,
                                            .causal = c.causal,
                                            .window = c.window,
                                            .anchors = c.anchors,
                                            .tile_lists = c.policy.has_value(),
                                            .dtype = c.float16 ? DType::kF16 : DType::kBF16};
  const ops::GpuLimits gpu = {
      .compute_major = 9, .num_sms = c.num_sms, .shared_bytes_per_block = 232448};
  const auto plan = ops::PlanPrefillAttention(shape, {.portable = c.portable}, gpu);
  ASSERT_TRUE(plan) << plan.error().message;
  std::optional<ops::sparse::Plan> sparse;
  std::optional<PackedLists<ops::PrefillTileLists>> lists;
  if (c.policy) {
    sparse = ops::sparse::MakePlan({.num_heads = c.heads,
                                    .num_kv_heads = c.kv_heads,
                                    .tile_queries = plan->kernel.rows,
                                    .tile_keys = plan->kernel.keys},
                                   *c.policy, SequencesOf(c.kv_lengths, starts))
                 .value();
    lists.emplace(ops::MakePrefillTileLists(*sparse, *plan).value());
  }
  Workspace workspace(plan->workspace_bytes);
  std::fill_n(workspace.data(), plan->zeroed_bytes, uint8_t{0});
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
  p.scale = scale;
  ops::BindPrefillWorkspace(*plan, workspace.data(), &p);
  if (sparse) lists->Bind(&p);
  const Status legal = ops::CheckPrefillParams(*plan, p);
  ASSERT_TRUE(legal) << legal.error().message;
  if (!sparse) {
    ASSERT_EQ(kernels::cuda::PreparePrefill(p, plan->rows, longest, nullptr), cudaSuccess);
  }
  ASSERT_EQ(kernels::cuda::RunPrefill(c.dim_qk, c.dim_v, p, nullptr), cudaSuccess);
  EXPECT_EQ(*p.next, 0);

  std::optional<LearnedRows> learned;
  if (sparse && c.policy->learned_rows > 0) {
    learned.emplace(*sparse, c.dim_qk, c.dim_v, c.float16, noise);
    ops::PrefillAttentionShape own_shape = shape;
    own_shape.page_tokens = 64;
    own_shape.max_kv_tokens = c.policy->learned_rows;
    own_shape.causal = false;
    const auto own_plan = ops::PlanPrefillAttention(own_shape, {}, gpu);
    ASSERT_TRUE(own_plan) << own_plan.error().message;
    const PackedLists own(ops::MakeLearnedPrefillTileLists(*sparse, *own_plan).value());
    Workspace own_workspace(own_plan->workspace_bytes);
    std::fill_n(own_workspace.data(), own_plan->zeroed_bytes, uint8_t{0});
    std::vector<uint16_t> own_out(out.size(), 0xffff);
    std::vector<float> own_lse(lse.size(), NAN);
    kernels::cuda::PrefillParams of_rows = p;
    of_rows.k = learned->View(0);
    of_rows.v = learned->View(1);
    learned->Bind(&of_rows);
    of_rows.out = own_out.data();
    of_rows.lse = own_lse.data();
    ops::BindPrefillWorkspace(*own_plan, own_workspace.data(), &of_rows);
    own.Bind(&of_rows);
    const Status own_legal = ops::CheckPrefillParams(*own_plan, of_rows);
    ASSERT_TRUE(own_legal) << own_legal.error().message;
    ASSERT_EQ(kernels::cuda::RunPrefill(c.dim_qk, c.dim_v, of_rows, nullptr), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(FoldLearned(own_out, own_lse, c.dim_v, c.float16, &out, &lse));
  }

  if (bits != nullptr) *bits = out;
  Errors errors;
  for (size_t b = 0; b < count - (c.last_queries != 0 ? 1 : 0); ++b) {
    for (int j = 0; j < queries[b]; ++j) {
      const int position = c.kv_lengths[b] - queries[b] + j;
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads);
        const size_t row = static_cast<size_t>(starts[b] + j) * c.heads + h;
        const int visible = c.causal ? position + 1 : c.kv_lengths[b];
        const bool off = sparse && sparse->PolicyOf(h).role == ops::sparse::HeadRole::kOff;
        const int learned_rows = learned && !off ? c.policy->learned_rows : 0;
        const auto want = AttendRow(
            visible + learned_rows, c.dim_v,
            [&](int key) {
              const bool seen =
                  key >= visible ||
                  (sparse ? sparse->Sees(static_cast<int32_t>(b), h, j, key)
                          : !c.causal || position - key <= c.window || key < c.anchors);
              if (!seen) return -std::numeric_limits<double>::infinity();
              double sum = 0;
              for (int d = 0; d < c.dim_qk; ++d) {
                sum += double{bench::ElementToF32(q[row * c.dim_qk + d], c.float16)} *
                       (key >= visible ? learned->Value(0, key - visible, kv_head, d)
                                       : k.Value(table, b, key, kv_head, d));
              }
              return sum * p.scale;
            },
            [&](int key, int d) {
              return key >= visible ? learned->Value(1, key - visible, kv_head, d)
                                    : v.Value(table, b, key, kv_head, d);
            });
        errors.Add(want, out.data() + row * c.dim_v, lse[row], c.float16);
      }
    }
  }
  EXPECT_LE(errors.out(), c.float16 ? 6e-4 : 5e-3);  // probabilities and output are rounded
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
  for (const uint64_t seed : Seeds({1, 2})) {
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

TEST_P(EmulatedPrefill, Float16) {
  for (const uint64_t seed : Seeds({1, 2})) {
    const auto check = [seed](Case c) {
      c.float16 = true;
      Check(c, seed);
    };
    check({.name = "odd lengths", .kv_lengths = {1, 63, 0, 65, 257}});
    check({.name = "d128, chunk",
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {333, 5},
           .query_tokens = {70, 3}});
    check({.name = "192/128, full",
           .dim_qk = 192,
           .dim_v = 128,
           .causal = false,
           .kv_lengths = {260},
           .page_tokens = 16});
    check({.name = "large logits", .kv_lengths = {300}, .logit_scale = 60});
    check({.name = "window", .kv_lengths = {400}, .window = 100, .anchors = 10});
  }
}

// What float16 probabilities could not hold: too large, or so small that they would be zeros.
TEST_P(EmulatedPrefill, UnevenWeights) {
  for (const Weights weights :
       {Weights::kSink, Weights::kRising, Weights::kFalling, Weights::kSteepFall}) {
    for (const bool float16 : {false, true}) {
      if (simt::kWatched && !float16) continue;  // the same accesses
      for (const int dim : {64, 128, 192}) {
        Check({.name = weights == Weights::kSink     ? "a sink"
                       : weights == Weights::kRising ? "rising weights"
                                                     : "falling weights",
               .heads = 1,
               .dim_qk = dim,
               .dim_v = std::min(dim, 128),
               .causal = false,
               .kv_lengths = {500},
               .query_tokens = {20},
               .float16 = float16,
               .weights = weights},
              5);
      }
    }
  }
}

// The rows of a tile that are the next sequence's change no bit of this one's.
TEST_P(EmulatedPrefill, NeighboursAreNotSeen) {
  for (const int dim : {64, 128}) {
    Case c = {.name = "a sequence and its neighbour",
              .dim_qk = dim,
              .dim_v = dim,
              .kv_lengths = {277, 140},
              .portable = GetParam()};
    std::vector<uint16_t> alone;
    cuda_test::Check(c, 6, &alone);
    for (const float value : {1e30F, HUGE_VALF, NAN}) {
      c.last_queries = value;
      std::vector<uint16_t> beside;
      cuda_test::Check(c, 6, &beside);
      const size_t first = size_t{277} * 2 * static_cast<size_t>(dim);
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.begin() + static_cast<ptrdiff_t>(first), beside.begin()))
          << value;
    }
  }
}

TEST(EmulatedPrefillLists, AgreeWithFloat64) {
  using ops::sparse::HeadRole;
  for (const uint64_t seed : {1, 2}) {
    Check({.name = "window and anchors",
           .kv_lengths = {700, 1, 130},
           .policy = {{.heads = {{HeadRole::kLocal, 100, 10}}}}},
          seed);
    Check({.name = "policy table, chunks",
           .heads = 8,
           .kv_heads = 4,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {900, 40, 300},
           .query_tokens = {300, 40, 7},
           .policy = PolicyTable()},
          seed);
    Check({.name = "both sides, 192/128",
           .dim_qk = 192,
           .dim_v = 128,
           .causal = false,
           .kv_lengths = {500, 129},
           .page_tokens = 16,
           .policy = {{.causal = false, .heads = {{HeadRole::kLocal, 70, 5}}}}},
          seed);
    Check({.name = "anchor lists",
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {700, 300},
           .policy = {{.heads = {{HeadRole::kLocal, 20, 5}},
                       .anchors = MakeLists({{100, 101, 320, 511}, {7, 250}})}}},
          seed);
    Check({.name = "anchor lists by head",
           .kv_lengths = {500, 100},
           .policy = {{.heads = {{HeadRole::kLocal, 20}},
                       .anchors = MakeLists({{100, 101, 320}, {}, {7}, {8, 64}})}}},
          seed);
  }
}

TEST(EmulatedPrefillLists, Float16) {
  using ops::sparse::HeadRole;
  Check({.name = "window and anchors",
         .kv_lengths = {700, 1, 130},
         .policy = {{.heads = {{HeadRole::kLocal, 100, 10}}}},
         .float16 = true},
        1);
  Check({.name = "learned rows, chunks",
         .heads = 8,
         .kv_heads = 4,
         .dim_qk = 128,
         .dim_v = 128,
         .kv_lengths = {900, 40, 300},
         .query_tokens = {300, 40, 7},
         .policy = {{.heads = PolicyTable().heads, .learned_rows = 100}},
         .float16 = true},
        2);
  Check({.name = "both sides, 192/128",
         .dim_qk = 192,
         .dim_v = 128,
         .causal = false,
         .kv_lengths = {500, 129},
         .page_tokens = 16,
         .policy = {{.causal = false, .heads = {{HeadRole::kLocal, 70, 5}}}},
         .float16 = true},
        3);
}

// Every query its own blocks of 64 keys, also none, and runs of queries that share them.
TEST(EmulatedPrefillLists, Blocks) {
  using ops::sparse::HeadRole;
  for (const uint64_t seed : {1, 2}) {
    for (const bool per_head : {false, true}) {
      for (const int run : {1, 48, 256}) {
        std::mt19937 random(static_cast<uint32_t>(seed));
        const std::vector<int32_t> lengths = {450, 130};
        ops::sparse::Lists blocks;
        for (const int32_t length : lengths) {
          for (int list = 0; list < (per_head ? 2 : 1) * ((length + run - 1) / run); ++list) {
            std::vector<int32_t> chosen;
            for (int32_t block = 0; block * 64 < length; ++block) {
              if (random() % 3 == 0) chosen.push_back(block);
            }
            blocks.Add(chosen);
          }
        }
        Check({.name = "blocks",
               .dim_qk = run == 1 ? 128 : 64,
               .dim_v = run == 1 ? 128 : 64,
               .causal = run != 256,
               .kv_lengths = lengths,
               .policy = {{.causal = run != 256,
                           .heads = {{HeadRole::kBlocks}},
                           .blocks = blocks,
                           .blocks_per_head = per_head,
                           .queries_per_list = run}}},
              seed);
      }
    }
  }
}

TEST(EmulatedPrefillLists, LearnedRows) {
  using ops::sparse::HeadRole;
  for (const int rows : {1, 64, 130, 256}) {
    Check({.name = "learned rows",
           .heads = 4,
           .kv_heads = 2,
           .dim_qk = 128,
           .dim_v = 128,
           .kv_lengths = {1, 300, 65},
           .query_tokens = {1, 140, 65},
           .policy = {{.heads = {{HeadRole::kLocal, 100},
                                 {HeadRole::kOff},
                                 {HeadRole::kGlobal},
                                 {HeadRole::kLocal, 0}},
                       .learned_rows = rows}}},
          static_cast<uint64_t>(rows));
  }
}

TEST_P(EmulatedPrefill, WindowAndAnchors) {
  for (const uint64_t seed : Seeds({5, 6})) {
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
