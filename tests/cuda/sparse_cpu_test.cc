// The CPU op and the CUDA kernels (emulated) execute the same sparse plan on the same cache memory.
#include <gtest/gtest.h>

#include <limits>

#include "emulator/simt.h"
#include "ops/random_sparse_policy.h"
#include "ops/sparse_attention.h"
#include "ops/test_rig.h"
#include "tile_lists.h"

namespace fathom::cuda_test {
namespace {

using ops::attention::GqaShape;
using ops::sparse::HeadRole;
using ops::testing::Rig;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 3, .shared_bytes_per_block = 232448};

// Pages of a bf16 cache, in a scrambled order; all of them random, rows without a token too.
struct Problem {
  GqaShape shape{6, 2, 64, 64, 0.125F, ops::Precision::kF32};
  std::vector<ops::sparse::Sequence> sequences;
  ops::sparse::Policy policy;
  ops::CacheFormat format;
  std::vector<uint16_t> cache;
  std::vector<int32_t> table, starts = {0}, lengths;
  int32_t stride = 0;
  int64_t num_pages = 0;
  std::vector<uint16_t> q;

  Problem(const std::vector<ops::sparse::Sequence>& of, ops::sparse::Policy with, uint32_t seed)
      : sequences(of), policy(std::move(with)) {
    Noise noise(seed);
    format = ops::MakeGqaFormat(1, shape.num_kv_heads, shape.head_dim, shape.head_dim_v,
                                DType::kBF16, 64, ops::RopeState::kNone)
                 .value();
    for (const ops::sparse::Sequence& s : sequences) {
      starts.push_back(starts.back() + s.queries);
      lengths.push_back(s.keys);
    }
    const PageTable pages(lengths, 64, noise);
    table = pages.entries;
    stride = static_cast<int32_t>(pages.stride);
    num_pages = pages.num_pages;
    cache = noise.Bf16(static_cast<size_t>(num_pages * format.page_bytes) / 2, 1);
    q = noise.Bf16(Rows() * static_cast<size_t>(shape.head_dim), 2);
  }
  size_t Rows() const {
    return static_cast<size_t>(starts.back()) * static_cast<size_t>(shape.num_heads);
  }
  ops::sparse::Plan Plan(int32_t tile_queries, int32_t tile_keys) const {
    return ops::sparse::MakePlan({.num_heads = shape.num_heads,
                                  .num_kv_heads = shape.num_kv_heads,
                                  .tile_queries = tile_queries,
                                  .tile_keys = tile_keys},
                                 policy, sequences)
        .value();
  }
  kernels::cuda::PagedPlane Plane(ops::PlaneKind kind) const {
    const ops::Plane& plane = *format.Find(kind);
    return {reinterpret_cast<const char*>(cache.data()) + plane.offset_bytes, format.page_bytes,
            plane.token_stride_bytes, plane.head_stride_bytes};
  }
};

struct Outcome {
  std::vector<float> out;
  std::vector<float> lse;
};

Outcome RunOnCpu(Problem& p) {
  Rig rig;
  const GqaShape& s = p.shape;
  const auto count = static_cast<int32_t>(p.sequences.size());
  std::vector<float> q;
  for (const uint16_t x : p.q) q.push_back(Bf16ToF32(x));
  ops::StepInputs inputs;
  inputs.bucket = {.num_tokens = p.starts.back(),
                   .num_sequences = count,
                   .max_query_tokens = p.starts.back(),
                   .max_kv_tokens = 4096};
  inputs.live_counts = rig.Upload(std::vector<int32_t>{p.starts.back(), count, 0});
  inputs.query_starts = rig.Upload(p.starts);
  inputs.kv_lengths = rig.Upload(p.lengths);
  inputs.roles = rig.Upload(std::vector<ops::Role>(p.sequences.size(), ops::Role::kPrompt));
  inputs.page_tables[0] = rig.Upload(p.table);
  inputs.page_table_stride[0] = p.stride;
  ops::attention::SparseArgs args;
  args.q = TensorView::Contiguous(rig.Upload(q), DType::kF32,
                                  {p.starts.back(), s.num_heads, s.head_dim});
  args.out = TensorView::Contiguous(
      rig.Upload(std::vector<float>(p.Rows() * static_cast<size_t>(s.head_dim_v), kNan)),
      DType::kF32, {p.starts.back(), s.num_heads, s.head_dim_v});
  args.lse = rig.Upload(std::vector<float>(p.Rows(), kNan));
  args.cache = {p.format, p.cache.data(), p.num_pages};
  const auto plan = ops::attention::MakePlan(
      s, p.format, std::make_shared<const ops::sparse::Plan>(p.Plan(16, 64)), rig.threads());
  EXPECT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(ops::attention::Run(*plan, s, args, inputs, rig.context()));
  return {rig.Download<float>(args.out.data, p.Rows() * static_cast<size_t>(s.head_dim_v)),
          rig.Download<float>(args.lse, p.Rows())};
}

// What decode and prefill parameters have in common.
template <class Params>
void Fill(const Problem& p, std::vector<uint16_t>* out, std::vector<float>* lse, Params* params) {
  params->q = p.q.data();
  params->q_token_stride = int64_t{p.shape.num_heads} * p.shape.head_dim;
  params->q_head_stride = p.shape.head_dim;
  params->num_pages = p.num_pages;
  params->page_tokens = 64;
  params->page_table = p.table.data();
  params->page_table_stride = p.stride;
  params->kv_lengths = p.lengths.data();
  params->query_starts = p.starts.data();
  params->out = out->data();
  params->out_token_stride = int64_t{p.shape.num_heads} * p.shape.head_dim_v;
  params->out_head_stride = p.shape.head_dim_v;
  params->lse = lse->data();
  params->scale = p.shape.softmax_scale;
}

void Compare(const Outcome& cpu, const std::vector<uint16_t>& out, const std::vector<float>& lse) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double found = Bf16ToF32(out[i]);
    difference += (found - cpu.out[i]) * (found - cpu.out[i]);
    norm += double{cpu.out[i]} * cpu.out[i];
  }
  EXPECT_LE(std::sqrt(difference / norm), 5e-3);  // bf16 output and probabilities
  for (size_t i = 0; i < lse.size(); ++i) {
    if (lse[i] != cpu.lse[i]) {  // also -inf
      EXPECT_NEAR(lse[i], cpu.lse[i], 1e-3) << "row " << i;
    }
  }
}

TEST(EmulatedSparse, DecodeAgreesWithTheCpuOp) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    simt::SetSeed(seed);
    ops::sparse::Random random(seed);
    const std::vector<ops::sparse::Sequence> sequences = {{1, 400}, {8, 257}, {2, 65}};
    Problem p(sequences,
              ops::sparse::RandomPolicy(random, {.num_heads = 6, .num_kv_heads = 2}, sequences),
              seed);
    const ops::sparse::Plan tiles = p.Plan(8, 64);
    const PackedLists lists(ops::MakeDecodeTileLists(tiles).value());
    const auto plan = ops::PlanDecodeAttention({.num_sequences = 3,
                                                .max_query_tokens = 8,
                                                .num_heads = 6,
                                                .num_kv_heads = 2,
                                                .head_dim_qk = 64,
                                                .head_dim_v = 64,
                                                .max_kv_tokens = lists.made().LongestTokens(),
                                                .tile_lists = true,
                                                .max_lists = lists.num_lists()},
                                               {}, kGpu);
    ASSERT_TRUE(plan) << plan.error().message;
    std::vector<uint16_t> out(p.Rows() * 64, 0xffff);
    std::vector<float> lse(p.Rows(), kNan);
    Workspace workspace(plan->workspace_bytes);
    kernels::cuda::DecodeParams params;
    Fill(p, &out, &lse, &params);
    params.plane[0] = p.Plane(ops::PlaneKind::kK);
    params.plane[1] = p.Plane(ops::PlaneKind::kV);
    lists.Bind(&params);
    ops::BindDecodeWorkspace(*plan, workspace.data(), &params);
    const Status legal = ops::CheckDecodeParams(*plan, params);
    ASSERT_TRUE(legal) << legal.error().message;
    ASSERT_EQ(kernels::cuda::PrepareDecode(params, nullptr), cudaSuccess);
    ASSERT_EQ(kernels::cuda::RunDecode(64, 64, plan->rows, params, nullptr), cudaSuccess);
    Compare(RunOnCpu(p), out, lse);
  }
}

TEST(EmulatedSparse, PrefillAgreesWithTheCpuOp) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    simt::SetSeed(seed);
    ops::sparse::Random random(seed);
    const std::vector<ops::sparse::Sequence> sequences = {{1, 400}, {200, 257}, {65, 65}};
    Problem p(sequences,
              ops::sparse::RandomPolicy(random, {.num_heads = 6, .num_kv_heads = 2}, sequences),
              seed);
    const auto plan = ops::PlanPrefillAttention({.num_sequences = 3,
                                                 .num_tokens = p.starts.back(),
                                                 .max_kv_tokens = 400,
                                                 .num_heads = 6,
                                                 .num_kv_heads = 2,
                                                 .head_dim_qk = 64,
                                                 .head_dim_v = 64,
                                                 .page_tokens = 64,
                                                 .causal = p.policy.causal,
                                                 .tile_lists = true},
                                                {}, kGpu);
    ASSERT_TRUE(plan) << plan.error().message;
    const ops::sparse::Plan tiles = p.Plan(plan->kernel.rows, plan->kernel.keys);
    const PackedLists lists(ops::MakePrefillTileLists(tiles, *plan).value());
    std::vector<uint16_t> out(p.Rows() * 64, 0xffff);
    std::vector<float> lse(p.Rows(), kNan);
    Workspace workspace(plan->workspace_bytes);
    std::fill_n(workspace.data(), plan->zeroed_bytes, uint8_t{0});
    kernels::cuda::PrefillParams params;
    Fill(p, &out, &lse, &params);
    params.num_tokens = p.starts.back();
    params.k = p.Plane(ops::PlaneKind::kK);
    params.v = p.Plane(ops::PlaneKind::kV);
    ops::BindPrefillWorkspace(*plan, workspace.data(), &params);
    lists.Bind(&params);
    const Status legal = ops::CheckPrefillParams(*plan, params);
    ASSERT_TRUE(legal) << legal.error().message;
    ASSERT_EQ(kernels::cuda::RunPrefill(64, 64, params, nullptr), cudaSuccess);
    Compare(RunOnCpu(p), out, lse);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
