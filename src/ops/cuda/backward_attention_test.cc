#include "ops/cuda/backward_attention.h"

#include <gtest/gtest.h>

#include <limits>

namespace fathom::ops {
namespace {

using kernels::cuda::BackwardParams;
using kernels::cuda::TokenTensor;

const GpuLimits kA100 = LimitsOf(*cost::FindHardware("A100"));

BackwardParams LegalParams() {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  BackwardParams params;
  uintptr_t address = 0x10000;
  for (TokenTensor* tensor : {&params.q, &params.k, &params.v, &params.out, &params.d_out,
                              &params.d_q, &params.d_k, &params.d_v}) {
    *tensor = {at(address), 1024, 128};
    address += 0x10000;
  }
  params.lse = static_cast<float*>(at(0x1000));
  params.row_stats = static_cast<float*>(at(0x2000));
  params.scale = 0.1F;
  params.batch = 2;
  params.length = 100;
  params.num_heads = 8;
  params.num_kv_heads = 2;
  return params;
}

TEST(CheckBackwardParams, BothTypesAndHeadDims) {
  BackwardParams params = LegalParams();
  for (const bool float16 : {false, true}) {
    params.float16 = float16;
    for (const int dim : {64, 128}) EXPECT_TRUE(CheckBackwardParams(params, dim, kA100));
  }
}

TEST(CheckBackwardParams, NamesWhatIsWrong) {
  const auto refused = [](const BackwardParams& params, int dim, const GpuLimits& gpu,
                          const char* says) {
    const Status status = CheckBackwardParams(params, dim, gpu);
    ASSERT_FALSE(status) << says;
    EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
  };
  refused(LegalParams(), 96, kA100, "head dim 96: expected 64 or 128 (in bf16 or float16)");
  GpuLimits gpu = kA100;
  gpu.compute_major = 7;
  refused(LegalParams(), 64, gpu, "needs compute capability 8.0");
  gpu = kA100;
  gpu.shared_bytes_per_block = 48 * 1024;
  refused(LegalParams(), 128, gpu, "and 49152");
  struct Breakage {
    void (*apply)(BackwardParams*);
    const char* says;
  };
  for (const Breakage& breakage :
       {Breakage{[](BackwardParams* p) { p->num_heads = 7; }, "7 heads, 2 kv heads"},
        Breakage{[](BackwardParams* p) { p->batch = p->length = 1 << 20; }, "rows below 2^31"},
        Breakage{[](BackwardParams* p) { p->d_k.data = nullptr; }, "16-byte aligned"},
        Breakage{[](BackwardParams* p) { p->d_out.head_stride = 100; }, "strides 1024 and 100"},
        Breakage{[](BackwardParams* p) { p->lse = nullptr; }, "log-sum-exp"},
        Breakage{[](BackwardParams* p) { p->scale = std::numeric_limits<float>::infinity(); },
                 "scale inf"}}) {
    BackwardParams params = LegalParams();
    breakage.apply(&params);
    refused(params, 64, kA100, breakage.says);
  }
}

}  // namespace
}  // namespace fathom::ops
