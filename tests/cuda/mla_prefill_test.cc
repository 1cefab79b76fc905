// MLA prefill from latent pages on the emulated GPU; the host multiplies in cuBLAS's place.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention/element.h"
#include "attention/mla_prefill_case.h"
#include "emulator/simt.h"
#include "ops/attention.h"
#include "ops/test_rig.h"

namespace fathom::cuda_test {
namespace {

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 2, .shared_bytes_per_block = 232448};

cudaError_t Multiply(const kernels::cuda::GemmParams& p, cudaStream_t) {
  const auto value = [&p](uint16_t bits) { return bench::ElementToF32(bits, p.float16); };
  const auto* a = static_cast<const uint16_t*>(p.a);
  const auto* b = static_cast<const uint16_t*>(p.b);
  std::vector<float> row(static_cast<size_t>(p.k));
  std::vector<float> weights(static_cast<size_t>(p.n * p.k));
  for (int64_t i = 0; i < p.n * p.k; ++i) weights[static_cast<size_t>(i)] = value(b[i]);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t k = 0; k < p.k; ++k) row[static_cast<size_t>(k)] = value(a[m * p.k + k]);
    for (int64_t n = 0; n < p.n; ++n) {
      float sum = 0;
      for (size_t k = 0; k < row.size(); ++k) {
        sum += row[k] * weights[static_cast<size_t>(n) * row.size() + k];
      }
      static_cast<uint16_t*>(p.c)[m * p.n + n] = bench::F32ToElement(sum, p.float16);
    }
  }
  return cudaSuccess;
}

class EmulatedMlaPrefill : public testing::TestWithParam<bool> {
 protected:
  static void Check(bench::MlaPrefillCase c, int want_parts) {
    SCOPED_TRACE(c.name);
    const bool float16 = c.float16;
    simt::SetSeed(static_cast<uint64_t>(want_parts));
    bench::MlaPrefillRun run(std::move(c), {.portable = GetParam()}, kGpu, &Multiply);
    EXPECT_EQ(run.plan().num_parts, want_parts);
    run.Run();
    const auto first = run.Output();
    const bench::AttentionErrors errors = run.CompareFloat64(400);
    EXPECT_TRUE(errors.finite);
    EXPECT_LE(errors.out, float16 ? 6e-4 : 5e-3);
    EXPECT_LE(errors.lse, float16 ? bench::kMlaLseToleranceF16 : bench::kMlaLseTolerance);
    run.Run();
    EXPECT_EQ(run.Output(), first);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedMlaPrefill, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Sm80" : "Sm90");
});

TEST_P(EmulatedMlaPrefill, OnePart) {
  Check({.name = "odd lengths",
         .num_heads = 2,
         .page_tokens = 16,
         .kv_lengths = {1, 63, 0, 65},
         .query_tokens = {1, 63, 0, 7}},
        1);
}

TEST_P(EmulatedMlaPrefill, PartsAcrossSequences) {
  Check({.name = "causal", .num_heads = 2, .kv_lengths = {50, 0, 210, 3}, .part_keys = 128}, 3);
  Check({.name = "a chunk longer than the last part",
         .num_heads = 1,
         .page_tokens = 32,
         .interleaved = true,
         .kv_lengths = {300},
         .query_tokens = {150},
         .part_keys = 128},
        3);
  Check({.name = "full",
         .num_heads = 1,
         .page_tokens = 128,
         .causal = false,
         .kv_lengths = {140, 60},
         .query_tokens = {9, 60},
         .part_keys = 128},
        2);
}

TEST_P(EmulatedMlaPrefill, Float16) {
  Check({.name = "float16, causal",
         .num_heads = 2,
         .kv_lengths = {50, 0, 210, 3},
         .part_keys = 128,
         .float16 = true},
        3);
  Check({.name = "float16, three parts, two at once",
         .num_heads = 1,
         .kv_lengths = {300},
         .query_tokens = {150},
         .part_keys = 128,
         .max_states = 2,
         .float16 = true},
        3);
}

TEST_P(EmulatedMlaPrefill, MorePartsThanAreMergedAtOnce) {
  Check({.name = "five parts, two at once",
         .num_heads = 1,
         .kv_lengths = {560},
         .query_tokens = {40},
         .part_keys = 128,
         .max_states = 2},
        5);
}

TEST_P(EmulatedMlaPrefill, ShorterThanPlanned) {
  Check({.name = "empty parts",
         .num_heads = 1,
         .kv_lengths = {140},
         .query_tokens = {20},
         .part_keys = 128,
         .spare_keys = 200},
        3);
}

// The host's attention of prompt tokens, in float32, over the same pages.
TEST_P(EmulatedMlaPrefill, AgreesWithTheHostsOp) {
  using kernels::cuda::kMlaLatent;
  using kernels::cuda::kMlaNope;
  using kernels::cuda::kMlaRope;
  using kernels::cuda::kMlaV;
  constexpr int kHeads = 2;
  constexpr int kKeys = 150;
  constexpr int kQueries = 40;
  constexpr int kPage = 32;
  const auto rounded = [](size_t count, uint32_t seed, float scale) {
    std::vector<float> values = ops::testing::Random(count, seed, scale);
    for (float& x : values) x = Bf16ToF32(F32ToBf16(x));
    return values;
  };
  ops::testing::Rig rig;
  const auto format =
      ops::MakeMlaFormat(1, kMlaLatent, kMlaRope, DType::kBF16, kPage, ops::RopeState::kNone);
  ASSERT_TRUE(format);
  const std::vector<int32_t> table = {3, 1, 5, 2, 4, 2147480000};
  std::vector<uint16_t> pages(size_t{6} * format->page_bytes / 2, 0xffff);
  for (const ops::PlaneKind kind : {ops::PlaneKind::kC, ops::PlaneKind::kKPe}) {
    const ops::Plane& plane = *format->Find(kind);
    const auto rows = ops::testing::ToBf16(
        ops::testing::Random(static_cast<size_t>(kKeys) * plane.dim, 1 + plane.dim));
    for (int t = 0; t < kKeys; ++t) {
      const size_t at = static_cast<size_t>(table[t / kPage]) * format->page_bytes +
                        plane.offset_bytes +
                        static_cast<size_t>(t % kPage) * plane.token_stride_bytes;
      std::copy_n(rows.begin() + t * plane.dim, plane.dim, pages.begin() + at / 2);
    }
  }
  const size_t head_weights = size_t{kMlaNope + kMlaV} * kMlaLatent;
  const auto kv_b = rounded(kHeads * head_weights, 7, 1 / std::sqrt(512.F));
  const auto q = rounded(size_t{kQueries} * kHeads * (kMlaNope + kMlaRope), 8, 1);
  const float scale = 1 / std::sqrt(192.F);

  ops::StepInputs inputs;
  inputs.bucket = {.num_tokens = kQueries,
                   .num_sequences = 1,
                   .num_logits = 1,
                   .max_query_tokens = kQueries,
                   .max_kv_tokens = kKeys};
  std::vector<int32_t> positions;
  for (int i = 0; i < kQueries; ++i) positions.push_back(kKeys - kQueries + i);
  const std::vector<int32_t> starts = {0, kQueries};
  const std::vector<int32_t> lengths = {kKeys};
  inputs.live_counts = rig.Upload(std::vector<int32_t>{kQueries, 1, 0});
  inputs.positions = rig.Upload(positions);
  inputs.query_starts = rig.Upload(starts);
  inputs.kv_lengths = rig.Upload(lengths);
  inputs.roles = rig.Upload(std::vector<ops::Role>{ops::Role::kPrompt});
  inputs.page_tables[0] = rig.Upload(table);
  inputs.page_table_stride[0] = static_cast<int32_t>(table.size());
  const ops::attention::MlaShape shape = {kHeads, kMlaLatent,          kMlaNope, kMlaRope, kMlaV,
                                          scale,  ops::Precision::kF32};
  ops::linear::WeightSource source;
  source.weight = TensorView::Contiguous(const_cast<float*>(kv_b.data()), DType::kF32,
                                         {kHeads * (kMlaNope + kMlaV), kMlaLatent});
  const auto weights = ops::attention::PackMlaWeights(source, shape, rig.device(), rig.cpu());
  ASSERT_TRUE(weights);
  const size_t elements = size_t{kQueries} * kHeads * kMlaV;
  ops::attention::MlaArgs args;
  args.q =
      TensorView::Contiguous(rig.Upload(q), DType::kF32, {kQueries, kHeads, kMlaNope + kMlaRope});
  args.out = TensorView::Contiguous(rig.Upload(std::vector<float>(elements, NAN)), DType::kF32,
                                    {kQueries, kHeads, kMlaV});
  args.cache = {*format, rig.Upload(pages), 6};
  const auto host_plan = ops::attention::MakePlan(shape, *format, inputs.bucket, rig.threads());
  ASSERT_TRUE(host_plan);
  ASSERT_TRUE(ops::attention::Run(*host_plan, shape, *weights, args, inputs, rig.context()));
  const auto want = rig.Download<float>(args.out.data, elements);

  const auto plan = ops::PlanMlaPrefill(
      {.num_sequences = 1,
       .num_tokens = kQueries,
       .max_kv_tokens = kKeys,
       .num_heads = kHeads,
       .page_tokens = kPage},
      {.portable = GetParam(), .expanded_bytes = 128 * (576 + kHeads * 256) * 2}, kGpu);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_parts, 2);
  std::vector<uint8_t> memory(static_cast<size_t>(plan->workspace_bytes) + 256, 0xff);
  auto* workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  std::fill_n(workspace, plan->zeroed_bytes, uint8_t{0});
  std::vector<uint16_t> w[2];
  for (size_t head = 0; head < kHeads; ++head) {
    for (size_t i = 0; i < head_weights; ++i) {
      w[i / (kMlaNope * kMlaLatent)].push_back(F32ToBf16(kv_b[head * head_weights + i]));
    }
  }
  const auto queries = ops::testing::ToBf16(q);
  std::vector<uint16_t> out(elements, 0xffff);
  kernels::cuda::MlaPrefillParams p;
  p.q = queries.data();
  p.q_head_stride = kMlaNope + kMlaRope;
  p.q_token_stride = kHeads * p.q_head_stride;
  p.num_tokens = kQueries;
  for (int i = 0; i < 2; ++i) {
    const ops::Plane& plane = *format->Find(i == 0 ? ops::PlaneKind::kC : ops::PlaneKind::kKPe);
    p.plane[i] = {reinterpret_cast<const char*>(pages.data()) + plane.offset_bytes,
                  format->page_bytes, plane.token_stride_bytes, plane.token_stride_bytes};
  }
  p.num_pages = 6;
  p.page_table = table.data();
  p.page_table_stride = static_cast<int64_t>(table.size());
  p.kv_lengths = lengths.data();
  p.query_starts = starts.data();
  p.w_uk = w[0].data();
  p.w_uv = w[1].data();
  p.out = out.data();
  p.scale = scale;
  ops::BindMlaPrefillWorkspace(*plan, workspace, &p);
  const Status legal = ops::CheckMlaPrefillParams(*plan, p);
  ASSERT_TRUE(legal) << legal.error().message;
  ASSERT_EQ(kernels::cuda::PrepareMlaPrefill(p, plan->prefill.rows, nullptr), cudaSuccess);
  ASSERT_EQ(kernels::cuda::RunMlaPrefill(p, &Multiply, nullptr), cudaSuccess);
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < elements; ++i) {
    const double error = Bf16ToF32(out[i]) - want[i];
    difference += error * error;
    norm += double{want[i]} * want[i];
  }
  EXPECT_LE(std::sqrt(difference / norm), 5e-3);
}

}  // namespace
}  // namespace fathom::cuda_test
