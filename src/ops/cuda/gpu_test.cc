#include "ops/cuda/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/cuda/decode_attention.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/shared_access.h"

namespace fathom::ops {
namespace {

using ::testing::HasSubstr;

const GpuLimits kH200 = LimitsOf(*cost::FindHardware("H200"));

TEST(AttentionKernels, EachFitsTheSmThatItWasMadeFor) {
  const cost::SmLimits sm = cost::SmLimitsOf(*cost::FindHardware("H200"));
  for (const auto kernels : {DecodeKernels(), PrefillKernels()}) {
    for (const AttentionKernel& kernel : kernels) {
      EXPECT_EQ(WhyNotOn(kH200, kernel), "") << kernel.family << " " << kernel.rows;
      EXPECT_LE((kernel.shared_bytes + 1024) * kernel.blocks_per_sm, sm.shared_bytes);
      EXPECT_LE(kernel.threads * kernel.blocks_per_sm, sm.threads);
    }
  }
}

// Zero excess wavefronts in every main loop; rows of 128 bytes without the swizzle would conflict
// eight ways.
TEST(SharedAccess, SwizzlesLeaveNoConflictInTheMainLoops) {
  const auto check = [](const AttentionKernel& kernel, const std::vector<SharedAccess>& accesses) {
    SCOPED_TRACE(kernel.family + std::string(" rows ") + std::to_string(kernel.rows));
    EXPECT_EQ(MainLoopWavefronts(accesses).excess(), 0);
    int operands = 0;
    for (const SharedAccess& access : accesses) {
      EXPECT_GT(access.found.count, 0) << access.what;
      if (access.what.find("operand") == std::string::npos) continue;
      ++operands;
      EXPECT_EQ(access.found.excess(), 0) << access.what;
      EXPECT_EQ(access.plain.count, 8 * access.found.count) << access.what;
    }
    EXPECT_GE(operands, 3);
  };
  for (const AttentionKernel& kernel : DecodeKernels()) {
    if (kernel.kind != KernelKind::kWarpgroups) continue;
    const auto accesses = DecodeSharedAccesses(kernel);
    check(kernel, accesses);
    for (const SharedAccess& access : accesses) {
      if (access.what.find("stmatrix") == std::string::npos) continue;
      EXPECT_EQ(access.plain.count, 8 * access.found.count);
    }
  }
  for (const AttentionKernel& kernel : PrefillKernels()) {
    if (kernel.kind != KernelKind::kWarpgroups) continue;
    check(kernel, PrefillSharedAccesses(kernel));
  }
}

// 64 keys x 128 elements: two blocks of 64 rows of 128 bytes, 64 wavefronts each.
TEST(SharedAccess, OperandWavefrontsByHand) {
  const AttentionKernel& kernel = DecodeKernels()[4];
  ASSERT_STREQ(kernel.family, "gqa_d128");
  const auto accesses = DecodeSharedAccesses(kernel);
  EXPECT_EQ(accesses[1].found.count, 2 * 64);
  EXPECT_EQ(accesses[1].plain.count, 2 * 64 * 8);
  EXPECT_EQ(accesses[2].found.count, 2 * 8);  // 8 query rows
}

std::string DecodeError(const DecodeAttentionShape& shape, const GpuLimits& gpu) {
  const auto plan = PlanDecodeAttention(shape, {}, gpu);
  return plan ? "accepted" : plan.error().message;
}

std::string PrefillError(const PrefillAttentionShape& shape, const GpuLimits& gpu) {
  const auto plan = PlanPrefillAttention(shape, {}, gpu);
  return plan ? "accepted" : plan.error().message;
}

TEST(ArgumentErrors, ListWhatTheGpuSupportsAndWhyEachKernelWasRefused) {
  DecodeAttentionShape decode{.num_sequences = 1,
                              .num_heads = 32,
                              .num_kv_heads = 8,
                              .head_dim_qk = 96,
                              .head_dim_v = 96,
                              .max_kv_tokens = 100};
  EXPECT_THAT(
      DecodeError(decode, kH200),
      AllOf(
          HasSubstr("decode attention, head dims 96/96, BF16: no kernel. Refused: gqa_d64 (head "
                    "dims 64/64); gqa_d128 (head dims 128/128); mla_576_512 (head dims 576/512);"),
          HasSubstr("mla_576_512_portable_f16 (head dims 576/512). Supported on this GPU: head "
                    "dims 64/64 (BF16, F16), head dims 128/128 (BF16, F16), head dims 576/512 "
                    "(BF16, F16)")));
  decode.head_dim_qk = 576;
  decode.head_dim_v = 512;
  decode.num_kv_heads = 1;
  const GpuLimits a100 = LimitsOf(*cost::FindHardware("A100"));
  EXPECT_EQ(DecodeError(decode, a100), "accepted");
  decode.code = kernels::cuda::CacheCode::kE4m3;
  EXPECT_THAT(
      DecodeError(decode, a100),
      AllOf(HasSubstr("mla_576_512_quantised (needs compute capability 9.0, this GPU has 8.0)"),
            HasSubstr("mla_576_512_portable (no quantised cache)"),
            HasSubstr("mla_576_512_portable_f16 (dtype F16 only, not BF16). Supported on this GPU: "
                      "head dims 64/64 (BF16, F16), head dims 128/128 (BF16, F16)")));
  decode.code = kernels::cuda::CacheCode::kBf16;
  decode.head_dim_qk = decode.head_dim_v = 128;
  decode.num_kv_heads = 8;
  GpuLimits volta = kH200;
  volta.compute_major = 7;
  EXPECT_THAT(DecodeError(decode, volta),
              AllOf(HasSubstr("gqa_d128_portable (needs compute capability 8.0 or later, this GPU "
                              "has 7.0)"),
                    HasSubstr("Supported on this GPU: nothing")));
  GpuLimits small = kH200;
  small.shared_bytes_per_block = 40 * 1024;
  EXPECT_THAT(DecodeError(decode, small), HasSubstr("bytes of shared memory a block"));
  decode.page_tokens = 48;
  EXPECT_THAT(
      DecodeError(decode, kH200),
      AllOf(HasSubstr("page size 48"), HasSubstr("supported on this GPU: head dims 64/64")));

  PrefillAttentionShape prefill{.num_sequences = 1,
                                .num_tokens = 100,
                                .max_kv_tokens = 100,
                                .num_heads = 32,
                                .num_kv_heads = 8,
                                .head_dim_qk = 128,
                                .head_dim_v = 128,
                                .dtype = DType::kF32};
  EXPECT_THAT(PrefillError(prefill, kH200),
              AllOf(HasSubstr("d128 (dtype BF16 only, not F32)"),
                    HasSubstr("d128_portable_f16 (dtype F16 only, not F32)"),
                    HasSubstr("Supported on this GPU: head dims 64/64 (BF16, F16), head dims "
                              "128/128 (BF16, F16), head dims 192/128 (BF16, F16)")));
  prefill.dtype = DType::kBF16;
  prefill.page_tokens = 8;
  EXPECT_THAT(PrefillError(prefill, kH200),
              AllOf(HasSubstr("page size 8"), HasSubstr("supported on this GPU")));
}

TEST(ArgumentErrors, OverflowingSizes) {
  constexpr int32_t kHuge = 2147483647;
  DecodeAttentionShape decode{.num_sequences = 1 << 20,
                              .max_query_tokens = 8,
                              .num_heads = 256,
                              .num_kv_heads = 1,
                              .head_dim_qk = 128,
                              .head_dim_v = 128,
                              .max_kv_tokens = 100};
  EXPECT_THAT(DecodeError(decode, kH200), HasSubstr("2147483648 rows: expected at most 536870911"));
  decode.num_sequences = 1;
  decode.num_heads = 512;
  EXPECT_THAT(DecodeError(decode, kH200), HasSubstr("tokens x heads^2 below 1048576"));
  decode.num_heads = 32;
  decode.num_sequences = kHuge;
  decode.max_kv_tokens = kHuge;
  EXPECT_THAT(DecodeError(decode, kH200), HasSubstr("keys in all"));

  PrefillAttentionShape prefill{.num_sequences = 1,
                                .num_tokens = kHuge,
                                .max_kv_tokens = 100,
                                .num_heads = 256,
                                .num_kv_heads = 8,
                                .head_dim_qk = 128,
                                .head_dim_v = 128};
  EXPECT_THAT(PrefillError(prefill, kH200), HasSubstr("tiles of 128 rows"));
  prefill.max_total_kv_tokens = 99;
  EXPECT_THAT(PrefillError(prefill, kH200), HasSubstr("up to 100 keys, 99 keys in all"));
  prefill.max_total_kv_tokens = 0;
  prefill.num_sequences = prefill.max_kv_tokens = kHuge;
  EXPECT_THAT(PrefillError(prefill, kH200), HasSubstr("keys in all"));
}

}  // namespace
}  // namespace fathom::ops
