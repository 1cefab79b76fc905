// The fold of partial results on the emulated GPU.
#include <gtest/gtest.h>

#include "attention/merge_case.h"

namespace fathom::cuda_test {
namespace {

constexpr ops::GpuLimits kGpu = {
    .compute_major = 9, .num_sms = 2, .shared_bytes_per_block = 232448};

TEST(EmulatedMergeStates, AgreesWithFloat64) {
  for (const bench::MergeCase& c : bench::MergeCheckCases()) {
    SCOPED_TRACE(c.name);
    bench::MergeRun run(c, kGpu);
    run.Run();
    const bench::MergeRun::Errors errors = run.Compare();
    EXPECT_LE(errors.out, bench::MergeTolerance(c));
    EXPECT_LE(errors.lse, 1e-4);
  }
}

TEST(MergeStates, BadArgumentsAreNamed) {
  alignas(16) float rows[8] = {};
  kernels::cuda::MergeStatesParams good;
  good.num_states = 1;
  good.dim = 4;
  good.rows = 2;
  good.states[0] = {.out = rows, .lse = rows, .row_stride = 4, .float32 = true};
  good.out = rows;
  good.out_row_stride = 4;
  good.out_float32 = true;
  ASSERT_TRUE(ops::CheckMergeStatesParams(good, kGpu));
  const auto message = [](kernels::cuda::MergeStatesParams p, auto change,
                          const ops::GpuLimits& gpu = kGpu) {
    change(p);
    const Status status = ops::CheckMergeStatesParams(p, gpu);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_NE(message(good, [](auto& p) { p.num_states = 17; }).find("expected 1 to 16"),
            std::string::npos);
  EXPECT_NE(message(good, [](auto& p) { p.dim = 6; }).find("multiples of 4"), std::string::npos);
  EXPECT_NE(message(good, [](auto& p) { p.rows = 0; }).find("0 rows"), std::string::npos);
  EXPECT_NE(message(good, [](auto& p) { p.states[0].row_stride = 2; }).find("at least 4"),
            std::string::npos);
  EXPECT_NE(message(good, [](auto& p) { p.states[0].lse = nullptr; }).find("no log-sum-exp"),
            std::string::npos);
  EXPECT_NE(message(good, [](auto& p) { p.out = nullptr; }).find("the result"), std::string::npos);
  EXPECT_NE(message(good, [](auto&) {}, {.compute_major = 7}).find("needs compute capability 8.0"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom::cuda_test
