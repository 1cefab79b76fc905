#pragma once
// One decode shape on the emulated GPU, compared with float64.
#include <cstdint>
#include <optional>
#include <vector>

#include "harness.h"
#include "ops/cuda/decode_attention.h"
#include "ops/sparse_plan.h"

namespace fathom::cuda_test {

struct DecodeCheck {
  const char* name = "";
  int heads = 4;
  int kv_heads = 2;
  int dim_qk = 64;
  int dim_v = 64;
  std::vector<int32_t> kv_lengths;
  int page_tokens = 64;
  std::vector<int32_t> query_tokens = {};  // empty: one each
  ops::Reduction reduction = ops::Reduction::kBalanced;
  ops::DecodeKernel kernel = ops::DecodeKernel::kAuto;
  kernels::cuda::CacheCode code = kernels::cuda::CacheCode::kBf16;
  bool portable = false;
  int num_sms = 4;
  int warp_merge_partials = 16;
  float logit_scale = 3;
  float value_scale = 1;  // of what the cache holds; queries are that much smaller
  std::optional<ops::sparse::Policy> policy = {};
  bool float16 = false;
  bench::Weights weights = bench::Weights::kRandom;
  int broken_row = -1;  // of [tokens, heads]: its query is zeros but for one element,
  float broken = 0;     // this; unless it is finite, NaN are expected
};

// result: the output, when asked for.
void Check(const DecodeCheck& c, uint64_t seed, std::vector<uint16_t>* result = nullptr);

}  // namespace fathom::cuda_test
