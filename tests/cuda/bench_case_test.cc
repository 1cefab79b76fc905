// What the GPU's checks are made of, on the emulated GPU: inputs whose weights are far apart, and
// the references that kernels are compared with.
#include <gtest/gtest.h>

#include "attention/decode_case.h"
#include "attention/prefill_case.h"
#include "attention/tolerances.h"
#include "order.h"

namespace fathom::cuda_test {
namespace {

using bench::AttentionErrors;
using bench::Weights;
using kernels::cuda::CacheCode;

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 1, .shared_bytes_per_block = 232448};

void Expect(const AttentionErrors& errors, bool float16) {
  EXPECT_TRUE(errors.finite);
  EXPECT_LE(errors.out, float16 ? bench::kToleranceF16 : bench::kTolerance);
  EXPECT_LE(errors.lse, bench::kLseTolerance);
}

constexpr Weights kDecodeWeights[] = {Weights::kRandom, Weights::kSink, Weights::kWaiting,
                                      Weights::kSteepRise};
constexpr Weights kPrefillWeights[] = {Weights::kRandom, Weights::kSink, Weights::kFalling,
                                       Weights::kSteepFall};

TEST(BenchDecodeCase, AgreesWithItsReferences) {
  for (const bool latent : {false, true}) {
    for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
      for (const bool float16 : {false, true}) {
        for (const Weights weights : kDecodeWeights) {
          if (simt::kWatched && weights != Weights::kRandom) break;  // the same accesses
          SCOPED_TRACE(fmt::format("latent {}, code {}, float16 {}, weights {}", latent,
                                   static_cast<int>(code), float16, static_cast<int>(weights)));
          simt::SetSeed(7);
          bench::DecodeRun run({.num_heads = 2,
                                .num_kv_heads = latent ? 1 : 2,
                                .dim_qk = latent ? 576 : 64,
                                .dim_v = latent ? 512 : 64,
                                .kv_lengths = {270, 1},
                                .code = code,
                                .float16 = float16,
                                .weights = weights},
                               {}, kGpu);
          run.Prepare();
          run.Run();
          Expect(run.CompareFloat32(), float16);
          if (code == CacheCode::kBf16) Expect(run.CompareFloat64(), float16);
          EXPECT_TRUE(run.ScheduleMatchesHost());
        }
      }
    }
  }
}

// Results of a part of few keys are beyond float16, the output is not: the sink has values of zero.
TEST(BenchDecodeCase, PartsOfCodesBeyondFloat16) {
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    SCOPED_TRACE(static_cast<int>(code));
    bench::DecodeRun run({.num_heads = 2,
                          .num_kv_heads = 1,
                          .dim_qk = 576,
                          .dim_v = 512,
                          .kv_lengths = {65, 64 * 6 + 8},
                          .code = code,
                          .float16 = true,
                          .weights = Weights::kSink},
                         {}, {.compute_major = 9, .num_sms = 8, .shared_bytes_per_block = 232448});
    ASSERT_GE(run.plan().num_parts, 8);  // nine tiles: the last part has eight keys
    run.Prepare();
    run.Run();
    Expect(run.CompareFloat32(), true);
  }
}

TEST(BenchPrefillCase, AgreesWithItsReference) {
  for (const bool portable : {false, true}) {
    for (const bool float16 : {false, true}) {
      for (const Weights weights : kPrefillWeights) {
        if (simt::kWatched && weights != Weights::kRandom) break;  // the same accesses
        SCOPED_TRACE(fmt::format("portable {}, float16 {}, weights {}", portable, float16,
                                 static_cast<int>(weights)));
        simt::SetSeed(7);
        bench::PrefillRun run({.num_heads = 1,
                               .num_kv_heads = 1,
                               .dim_qk = 64,
                               .dim_v = 64,
                               .kv_lengths = {400, 1},
                               .query_tokens = {70, 1},
                               .float16 = float16,
                               .weights = weights},
                              {.portable = portable}, kGpu);
        run.Run();
        Expect(run.CompareFloat32(20), float16);
      }
    }
  }
}

}  // namespace
}  // namespace fathom::cuda_test
