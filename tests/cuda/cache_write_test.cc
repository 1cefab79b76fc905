// The cache writer on the emulated GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/writer_case.h"
#include "emulator/simt.h"
#include "kernels/cuda/fp8.h"

namespace fathom::cuda_test {
namespace {

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 2, .shared_bytes_per_block = 232448};

TEST(E4m3, EveryCodeAndTheValuesBetween) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    const float value = kernels::cuda::DecodeE4m3(static_cast<uint8_t>(code));
    const int exponent = code >> 3 & 15;
    const double want = (code & 0x80 ? -1 : 1) *
                        (exponent == 0 ? (code & 7) / 8.0 * std::pow(2, -6)
                                       : (1 + (code & 7) / 8.0) * std::pow(2, exponent - 7));
    EXPECT_EQ(value, want) << code;
    EXPECT_EQ(kernels::cuda::EncodeE4m3(value), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = kernels::cuda::DecodeE4m3(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(kernels::cuda::EncodeE4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(kernels::cuda::EncodeE4m3(value + (next - value) * 0.49f), code);
    EXPECT_EQ(kernels::cuda::EncodeE4m3(value + (next - value) * 0.51f), code + 1);
  }
  EXPECT_EQ(kernels::cuda::EncodeE4m3(1e9f), 0x7e);
  EXPECT_EQ(kernels::cuda::EncodeE4m3(-1e9f), 0xfe);
}

TEST(EmulatedCacheWrite, AgreesWithFloat64) {
  uint64_t seed = 0;
  for (const bench::WriterCase& c : bench::WriterCheckCases()) {
    SCOPED_TRACE(c.name);
    simt::SetSeed(++seed);
    if (simt::kWatched && seed % 12 != 1) continue;  // long, and its threads share nothing
    bench::WriterRun run(c, kGpu);
    run.Run();
    const bench::WriterErrors errors = run.Compare();
    EXPECT_LE(errors.worst, 1);
    EXPECT_EQ(errors.stray, 0);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
