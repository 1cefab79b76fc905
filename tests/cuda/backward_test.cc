// The backward kernels on the emulated GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/backward_case.h"
#include "emulator/simt.h"

namespace fathom::cuda_test {
namespace {

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 2, .shared_bytes_per_block = 232448};

TEST(EmulatedBackward, AgreesWithFloat64) {
  uint64_t seed = 0;
  for (const bool causal : {true, false}) {
    if (simt::kWatched && !causal) break;  // long, and masks order nothing
    for (const bench::BackwardCase& c : {bench::BackwardCase{"", 1, 65, 2, 2, 64, causal},
                                         {"", 2, 130, 4, 1, 64, causal},
                                         {"", 1, 200, 2, 1, 128, causal},
                                         {"", 1, 1, 1, 1, 128, causal}}) {
      SCOPED_TRACE(std::to_string(c.length) + (causal ? " causal" : " full"));
      simt::SetSeed(++seed);
      bench::BackwardRun run(c, kGpu);
      run.Run();
      const auto first = run.Output();
      const bench::GradientErrors errors = run.Compare(100);
      EXPECT_LE(errors.d_q, 1e-2);
      EXPECT_LE(errors.d_k, 1e-2);
      EXPECT_LE(errors.d_v, 1e-2);
      run.Run();
      EXPECT_EQ(run.Output(), first);
    }
  }
}

bench::GradientErrors RunFloat16(bench::BackwardCase c, uint64_t seed) {
  simt::SetSeed(seed);
  c.float16 = true;
  bench::BackwardRun run(std::move(c), kGpu);
  run.Run();
  return run.Compare(100);
}

TEST(EmulatedBackward, Float16) {
  uint64_t seed = 0;
  for (const bool causal : {true, false}) {
    for (const bench::BackwardCase& c :
         {bench::BackwardCase{"", 1, 65, 2, 2, 64, causal},
          {"", 2, 130, 4, 1, 64, causal},
          {"", 1, 200, 2, 1, 128, causal},
          {"", 1, 1, 1, 1, 128, causal},
          // Probabilities of 2^-18, of which float16 keeps seven bits unless they are lifted.
          {.length = 200,
          .num_heads = 2,
          .num_kv_heads = 1,
          .dim = 64,
          .causal = causal,
          .d_out_scale = 512,
          .sink = 18}}) {
      if (simt::kWatched && seed != 0) break;  // the accesses of bf16
      SCOPED_TRACE(std::to_string(c.length) + (causal ? " causal" : " full"));
      const bench::GradientErrors errors = RunFloat16(c, ++seed);
      EXPECT_LE(errors.d_q, 6e-4);
      EXPECT_LE(errors.d_k, 6e-4);
      EXPECT_LE(errors.d_v, 6e-4);
    }
  }
}

// What float16 cannot hold is not clamped: the gradients say so.
TEST(EmulatedBackward, Float16OverflowIsSeenInTheGradients) {
  const bench::GradientErrors errors = RunFloat16(
      {.length = 130, .num_heads = 2, .num_kv_heads = 1, .dim = 64, .d_out_scale = 60000}, 3);
  EXPECT_TRUE(std::isinf(errors.d_q));
  EXPECT_TRUE(std::isnan(errors.d_k));
}

}  // namespace
}  // namespace fathom::cuda_test
