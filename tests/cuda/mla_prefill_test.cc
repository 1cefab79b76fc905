// MLA prefill from latent pages on the emulated GPU; the host multiplies in cuBLAS's place.
#include <gtest/gtest.h>

#include "attention/mla_prefill_case.h"
#include "base/dtype.h"
#include "emulator/simt.h"

namespace fathom::cuda_test {
namespace {

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 2, .shared_bytes_per_block = 232448};

cudaError_t Multiply(const kernels::cuda::GemmParams& p, cudaStream_t) {
  const auto* a = static_cast<const uint16_t*>(p.a);
  const auto* b = static_cast<const uint16_t*>(p.b);
  std::vector<float> row(static_cast<size_t>(p.k));
  std::vector<float> weights(static_cast<size_t>(p.n * p.k));
  for (int64_t i = 0; i < p.n * p.k; ++i) weights[static_cast<size_t>(i)] = Bf16ToF32(b[i]);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t k = 0; k < p.k; ++k) row[static_cast<size_t>(k)] = Bf16ToF32(a[m * p.k + k]);
    for (int64_t n = 0; n < p.n; ++n) {
      float sum = 0;
      for (size_t k = 0; k < row.size(); ++k) {
        sum += row[k] * weights[static_cast<size_t>(n) * row.size() + k];
      }
      static_cast<uint16_t*>(p.c)[m * p.n + n] = F32ToBf16(sum);
    }
  }
  return cudaSuccess;
}

class EmulatedMlaPrefill : public testing::TestWithParam<bool> {
 protected:
  static void Check(bench::MlaPrefillCase c, int want_parts) {
    SCOPED_TRACE(c.name);
    simt::SetSeed(static_cast<uint64_t>(want_parts));
    bench::MlaPrefillRun run(std::move(c), {.portable = GetParam()}, kGpu, &Multiply);
    EXPECT_EQ(run.plan().num_parts, want_parts);
    run.Run();
    const auto first = run.Output();
    const bench::AttentionErrors errors = run.CompareFloat64(400);
    EXPECT_TRUE(errors.finite);
    EXPECT_LE(errors.out, 5e-3);
    EXPECT_LE(errors.lse, bench::kMlaLseTolerance);
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

}  // namespace
}  // namespace fathom::cuda_test
