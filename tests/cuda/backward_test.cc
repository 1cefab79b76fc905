// The backward kernels on the emulated GPU.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fathom::cuda_test
