#include "decode_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "emulator/simt.h"
#include "tile_lists.h"

namespace fathom::cuda_test {
namespace {

using kernels::cuda::CacheCode;

// A key's weight, and what its values have to be for that.
void SetWeight(const DecodeCheck& c, const PageTable& table, size_t sequence, int token, int head,
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

}  // namespace

void Check(const DecodeCheck& c, uint64_t seed, std::vector<uint16_t>* result) {
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

}  // namespace fathom::cuda_test
