// The decode kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "emulator/simt.h"
#include "harness.h"
#include "tile_lists.h"

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
  float value_scale = 1;  // of what the cache holds; queries are that much smaller
  std::optional<ops::sparse::Policy> policy = {};
  bool float16 = false;
  Weights weights = Weights::kRandom;
  int broken_row = -1;  // of [tokens, heads]: its query is zeros but for one element,
  float broken = 0;     // this; unless it is finite, NaN are expected
};

// A key's weight, and what its values have to be for that.
void SetWeight(const Case& c, const PageTable& table, size_t sequence, int token, int head,
               HostPlane (&planes)[2]) {
  const bool latent = c.dim_qk > c.dim_v;
  HostPlane& keys = planes[latent ? 1 : 0];
  HostPlane& values = planes[latent ? 0 : 1];
  for (int d = 0; d < keys.dim; ++d) {
    keys.Set(table, sequence, token, head, d, bench::KeyElement(c.weights, token, d));
  }
  for (int d = 0; d < c.dim_v; ++d) {
    auto value = static_cast<float>(values.Value(table, sequence, token, head, d));
    if (c.weights == Weights::kWaiting) {  // the first scales are a power of two
      const float peak = c.code == CacheCode::kInt8 ? 127.F / 128 : 448.F / 512;
      value = d % 128 == 0 ? peak : value * 0.8F;
    }
    values.Set(table, sequence, token, head, d, value * bench::ValueFactor(c.weights, token));
  }
}

void Check(const Case& c, uint64_t seed, std::vector<uint16_t>* result = nullptr) {
  SCOPED_TRACE(fmt::format("{}: {} heads of {}, kernel {}, code {}{}{}, seed {}", c.name, c.heads,
                           c.dim_qk, static_cast<int>(c.kernel), static_cast<int>(c.code),
                           c.portable ? ", portable" : "", c.float16 ? ", float16" : "", seed));
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
    planes[i] =
        HostPlane(table, c.kv_lengths, c.page_tokens, c.kv_heads, dims[i], c.value_scale, noise);
    const bool codes = c.code != CacheCode::kBf16 && (i == 0 || !latent);
    if (c.float16 && !codes) planes[i].ToFloat16();
  }
  const size_t q_size = static_cast<size_t>(tokens) * c.heads * c.dim_qk;
  auto q = noise.Elements(q_size, c.logit_scale / c.value_scale, c.float16);
  const auto q_value = [&](size_t i) { return bench::ElementToF32(q[i], c.float16); };
  const bool weighted = c.weights != Weights::kRandom;
  const float scale =
      weighted ? bench::kWeightsScale : 1.f / std::sqrt(static_cast<float>(c.dim_qk));
  if (weighted) {
    const int along = latent ? c.dim_v : 0;
    for (size_t i = 0; i < q_size; ++i) {
      q[i] = bench::F32ToElement(static_cast<int>(i) % c.dim_qk == along ? 1.f : 0.f, c.float16);
    }
    for (size_t b = 0; b < count; ++b) {
      for (int t = 0; t < c.kv_lengths[b]; ++t) {
        for (int h = 0; h < c.kv_heads; ++h) SetWeight(c, table, b, t, h, planes);
      }
    }
  }
  if (c.broken_row >= 0) {
    const auto row = q.begin() + int64_t{c.broken_row} * c.dim_qk;
    std::fill(row, row + c.dim_qk, uint16_t{0});
    row[3] = bench::F32ToElement(c.broken, c.float16);
  }
  std::vector<uint16_t> out(static_cast<size_t>(tokens) * c.heads * c.dim_v, 0xffff);
  std::vector<float> lse(static_cast<size_t>(tokens) * c.heads, NAN);

  std::optional<ops::sparse::Plan> sparse;
  std::optional<PackedLists<ops::DecodeTileLists>> lists;
  if (c.policy) {
    sparse =
        ops::sparse::MakePlan({.num_heads = c.heads, .num_kv_heads = c.kv_heads, .tile_queries = 8},
                              *c.policy, SequencesOf(c.kv_lengths, starts))
            .value();
    lists.emplace(ops::MakeDecodeTileLists(*sparse).value());
  }
  const int longest = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());
  const ops::DecodeAttentionShape shape = {
      .num_sequences = static_cast<int32_t>(count),
      .max_query_tokens = max_queries,
      .num_heads = c.heads,
      .num_kv_heads = c.kv_heads,
      .head_dim_qk = c.dim_qk,
      .head_dim_v = c.dim_v,
      .page_tokens = c.page_tokens,
      .max_kv_tokens = sparse ? lists->made().LongestTokens() : std::max(1, longest),
      .dtype = c.float16 ? DType::kF16 : DType::kBF16,
      .code = c.code,
      .tile_lists = sparse.has_value(),
      .max_lists = sparse ? lists->num_lists() : 0};
  const ops::DecodeAttentionOptions options = {
      .reduction = c.reduction,
      .kernel = c.kernel,
      .portable = c.portable,
      .tuning = {.warp_merge_partials = c.warp_merge_partials}};
  const ops::GpuLimits gpu = {
      .compute_major = 9, .num_sms = c.num_sms, .shared_bytes_per_block = 232448};
  const auto plan = ops::PlanDecodeAttention(shape, options, gpu);
  ASSERT_TRUE(plan) << plan.error().message;
  Workspace workspace(plan->workspace_bytes);
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
  p.scale = scale;
  if (sparse) lists->Bind(&p);
  ops::BindDecodeWorkspace(*plan, workspace.data(), &p);
  const Status legal = ops::CheckDecodeParams(*plan, p);
  ASSERT_TRUE(legal) << legal.error().message;
  ASSERT_EQ(kernels::cuda::PrepareDecode(p, nullptr), cudaSuccess);
  ASSERT_EQ(kernels::cuda::RunDecode(c.dim_qk, c.dim_v, plan->rows, p, nullptr), cudaSuccess);
  EXPECT_EQ(plan->merge_inside, latent && !c.portable && c.reduction == ops::Reduction::kBalanced);
  if (plan->merge_inside) {  // what blocks count themselves in at is not reset between runs
    const std::vector<uint16_t> first = out;
    std::fill(out.begin(), out.end(), uint16_t{0xffff});
    ASSERT_EQ(kernels::cuda::RunDecode(c.dim_qk, c.dim_v, plan->rows, p, nullptr), cudaSuccess);
    EXPECT_EQ(out, first);
  }

  std::optional<LearnedRows> learned;
  if (sparse && c.policy->learned_rows > 0) {
    learned.emplace(*sparse, c.dim_qk, c.dim_v, c.float16, noise);
    const PackedLists own(ops::MakeLearnedDecodeTileLists(*sparse).value());
    ops::DecodeAttentionShape own_shape = shape;
    own_shape.code = CacheCode::kBf16;
    own_shape.page_tokens = 64;
    own_shape.max_kv_tokens = own.made().LongestTokens();
    const auto own_plan = ops::PlanDecodeAttention(own_shape, options, gpu);
    ASSERT_TRUE(own_plan) << own_plan.error().message;
    Workspace own_workspace(own_plan->workspace_bytes);
    std::vector<uint16_t> own_out(out.size(), 0xffff);
    std::vector<float> own_lse(lse.size(), NAN);
    kernels::cuda::DecodeParams of_rows = p;
    for (int i = 0; i < 2; ++i) of_rows.plane[i] = learned->View(i);
    learned->Bind(&of_rows);
    own.Bind(&of_rows);
    of_rows.out = own_out.data();
    of_rows.lse = own_lse.data();
    ops::BindDecodeWorkspace(*own_plan, own_workspace.data(), &of_rows);
    const Status own_legal = ops::CheckDecodeParams(*own_plan, of_rows);
    ASSERT_TRUE(own_legal) << own_legal.error().message;
    ASSERT_EQ(kernels::cuda::PrepareDecode(of_rows, nullptr), cudaSuccess);
    ASSERT_EQ(kernels::cuda::RunDecode(c.dim_qk, c.dim_v, own_plan->rows, of_rows, nullptr),
              cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(FoldLearned(own_out, own_lse, c.dim_v, c.float16, &out, &lse));
  }

  Errors errors;
  for (size_t b = 0; b < count; ++b) {
    const int queries = starts[b + 1] - starts[b];
    for (int j = 0; j < queries; ++j) {
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads);
        const size_t row = static_cast<size_t>(starts[b] + j) * c.heads + h;
        if (static_cast<int>(row) == c.broken_row && !std::isfinite(c.broken)) {
          EXPECT_TRUE(std::isnan(lse[row]));
          for (int d = 0; d < c.dim_v; ++d) {
            const uint16_t bits = out[row * c.dim_v + d];
            EXPECT_TRUE(std::isnan(bench::ElementToF32(bits, c.float16))) << d;
          }
          continue;
        }
        const int visible = c.kv_lengths[b] - (queries - 1 - j);
        const bool off = sparse && sparse->PolicyOf(h).role == ops::sparse::HeadRole::kOff;
        const int learned_rows = learned && !off ? c.policy->learned_rows : 0;
        const auto want = AttendRow(
            visible + learned_rows, c.dim_v,
            [&](int key) {
              if (key < visible && sparse && !sparse->Sees(static_cast<int32_t>(b), h, j, key)) {
                return -std::numeric_limits<double>::infinity();
              }
              double sum = 0;
              for (int d = 0; d < c.dim_qk; ++d) {
                const int plane = d < dims[0] ? 0 : 1;
                const double k = key >= visible ? learned->Value(0, key - visible, kv_head, d)
                                                : planes[plane].Value(table, b, key, kv_head,
                                                                      plane == 0 ? d : d - dims[0]);
                sum += double{q_value(row * c.dim_qk + d)} * k;
              }
              return sum * p.scale;
            },
            [&](int key, int d) {
              return key >= visible ? learned->Value(1, key - visible, kv_head, d)
                                    : planes[latent ? 0 : 1].Value(table, b, key, kv_head, d);
            });
        errors.Add(want, out.data() + row * c.dim_v, lse[row], c.float16);
      }
    }
  }
  EXPECT_LE(errors.out(), c.float16 ? 6e-4 : 5e-3);  // probabilities and output are rounded
  EXPECT_LE(errors.lse(), 1e-3);
  if (result != nullptr) *result = out;
}

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
void CheckHeads(const Case& c, uint64_t seed) {
  Case odd = c;
  odd.name = "odd lengths";
  odd.kv_lengths = {1, 63, 65, 0, 200};
  Check(odd, seed);
  Case merged = c;
  merged.name = "d128, pages of 16, merged";
  merged.heads = 8;
  merged.dim_qk = merged.dim_v = 128;
  merged.kv_lengths = {130, 700, 8};
  merged.page_tokens = 16;
  merged.query_tokens = {2, 1, 4};
  merged.num_sms = 8;
  Check(merged, seed);
  Case spans = c;
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

TEST(EmulatedDecode, MlaQuantised) {
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const uint64_t seed : Seeds({1, 2, 3})) {
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
      Check({.name = "mla 5, one part: slots that held the end of a sequence are used again",
             .heads = 5,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {1, 65, 257},
             .code = code,
             .num_sms = 1},
            seed);
      Check({.name = "mla 12, many partial results",
             .heads = 12,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {1290, 64},
             .code = code,
             .num_sms = 18,
             .float16 = seed == 2},
            seed);
    }
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
      Case mla = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .code = code, .float16 = true};
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
        Case c = {.name = "zeros", .heads = 8, .kv_heads = 1, .kv_lengths = {70, 300}};
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
void CheckWeights(Case c, Weights sink = Weights::kSink) {
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
  const Case heads = {.kv_lengths = {330, 1, 64}};
  Case c = heads;
  c.kernel = ops::DecodeKernel::kWarps;
  CheckWeights(c);
  c.kernel = ops::DecodeKernel::kWarpgroups;
  CheckWeights(c, Weights::kDeepSink);
  c = heads;
  c.portable = true;
  CheckWeights(c);
  Case mla = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .kv_lengths = {330, 1, 64}};
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

TEST(EmulatedDecode, Float16Latents) {
  for (const uint64_t seed : Seeds({1, 2})) {
    Case c = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .float16 = true};
    c.name = "16 rows, odd lengths";
    c.heads = 16;
    c.kv_lengths = {1, 65, 0, 257};
    c.num_sms = 3;
    Check(c, seed);
    c.name = "32 rows, merged";
    c.kv_lengths = {1290};
    c.query_tokens = {2};
    c.num_sms = 20;
    Check(c, seed);
    c.name = "64 rows, large logits, pages of 16, merged";
    c.heads = 128;
    c.kv_lengths = {300, 70};
    c.query_tokens = {1, 2};
    c.page_tokens = 16;
    c.num_sms = 9;
    c.logit_scale = 40;
    Check(c, seed);
    c.name = "64 rows, in segments";
    c.reduction = ops::Reduction::kSpans;
    c.logit_scale = 3;
    Check(c, seed);
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
    Case c = {.name = "a warp", .kv_lengths = {5300, 700}, .reduction = ops::Reduction::kSpans};
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

TEST(EmulatedDecode, MlaPortable) {
  const Case mla = {.kv_heads = 1, .dim_qk = 576, .dim_v = 512, .portable = true};
  for (const uint64_t seed : {1, 2}) {
    Case c = mla;
    c.name = "4 heads, odd lengths";
    c.kv_lengths = {1, 31, 0, 33, 65, 257};
    c.num_sms = 3;
    Check(c, seed);
    c = mla;
    c.name = "16 heads, pages of 16, several queries, large logits";
    c.heads = 16;
    c.kv_lengths = {70, 130, 8};
    c.page_tokens = 16;
    c.query_tokens = {2, 1, 8};
    c.num_sms = 6;
    c.logit_scale = 20;
    Check(c, seed);
    c = mla;
    c.name = "40 heads, spans";
    c.heads = 40;
    c.kv_lengths = {600, 77};
    c.page_tokens = 128;
    c.reduction = ops::Reduction::kSpans;
    Check(c, seed);
  }
}

TEST(EmulatedDecode, MlaSixteenHeads) {
  for (const uint64_t seed : Seeds({4, 5})) {
    Check({.name = "mla 16",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1, 65, 0, 257},
           .num_sms = 3},
          seed);
    Check({.name = "mla 16, few partial results",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {400, 30, 400},
           .query_tokens = {1, 1, 2},
           .num_sms = 7},
          seed);
    Check({.name = "mla 12 heads, many partial results",
           .heads = 12,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1290, 64},
           .num_sms = 22},
          seed);
    Check({.name = "mla 32 rows, many partial results",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1290},
           .query_tokens = {2},
           .num_sms = 20},
          seed);
    Check({.name = "mla 16, more blocks than tiles",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {130, 0, 5},
           .num_sms = 9},
          seed);
    Check({.name = "mla 16, in segments",
           .heads = 16,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {700, 300},
           .reduction = ops::Reduction::kSpans,
           .num_sms = 7},
          seed);
  }
}

TEST(EmulatedDecode, MlaManyHeads) {
  for (const uint64_t seed : Seeds({6, 7})) {
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
    Check({.name = "mla 128, few partial results",
           .heads = 128,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {500, 0, 70},
           .num_sms = 9},
          seed);
    Check({.name = "mla 40 heads, a row tile without rows",
           .heads = 40,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {64, 500},
           .query_tokens = {2, 1},
           .num_sms = 12},
          seed);
    Check({.name = "mla 50 heads, many partial results",  // as many threads as can be watched
           .heads = 50,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {1150},
           .num_sms = 18},
          seed);
    for (const float scale : {1e6f, 1e-6f}) {  // beyond float16
      Check({.name = "mla 64 heads, large or small values",
             .heads = 64,
             .kv_heads = 1,
             .dim_qk = 576,
             .dim_v = 512,
             .kv_lengths = {300},
             .num_sms = 3,
             .value_scale = scale},
            seed);
    }
    Check({.name = "mla 128, in segments",
           .heads = 128,
           .kv_heads = 1,
           .dim_qk = 576,
           .dim_v = 512,
           .kv_lengths = {300, 700},
           .reduction = ops::Reduction::kSpans,
           .num_sms = 9},
          seed);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
