// The decode kernels for latent caches on the emulated GPU.
#include <gtest/gtest.h>

#include "decode_check.h"
#include "emulator/simt.h"

namespace fathom::cuda_test {
namespace {

using kernels::cuda::CacheCode;

void CheckLatent(DecodeCheck c, uint64_t seed) {
  c.kv_heads = 1;
  c.dim_qk = 576;
  c.dim_v = 512;
  Check(c, seed);
}

TEST(EmulatedDecode, MlaQuantised) {
  for (const CacheCode code : {CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const uint64_t seed : Seeds({1, 2, 3})) {
      CheckLatent({.name = "mla 16",
                   .heads = 16,
                   .kv_lengths = {1, 65, 0, 257},
                   .code = code,
                   .num_sms = 3},
                  seed);
      CheckLatent({.name = "mla 20, several queries, pages of 16",
                   .heads = 20,
                   .kv_lengths = {70, 130},
                   .page_tokens = 16,
                   .query_tokens = {2, 1},
                   .code = code,
                   .num_sms = 6,
                   .logit_scale = 20},
                  seed);
      CheckLatent({.name = "mla 5, one part: slots that held the end of a sequence are used again",
                   .heads = 5,
                   .kv_lengths = {1, 65, 257},
                   .code = code,
                   .num_sms = 1},
                  seed);
      CheckLatent({.name = "mla 12, many partial results",
                   .heads = 12,
                   .kv_lengths = {1290, 64},
                   .code = code,
                   .num_sms = 18,
                   .float16 = seed == 2},
                  seed);
    }
  }
}

TEST(EmulatedDecode, Float16Latents) {
  for (const uint64_t seed : Seeds({1, 2})) {
    DecodeCheck c = {.float16 = true};
    c.name = "16 rows, odd lengths";
    c.heads = 16;
    c.kv_lengths = {1, 65, 0, 257};
    c.num_sms = 3;
    CheckLatent(c, seed);
    c.name = "32 rows, merged";
    c.kv_lengths = {1290};
    c.query_tokens = {2};
    c.num_sms = 20;
    CheckLatent(c, seed);
    c.name = "64 rows, large logits, pages of 16, merged";
    c.heads = 128;
    c.kv_lengths = {300, 70};
    c.query_tokens = {1, 2};
    c.page_tokens = 16;
    c.num_sms = 9;
    c.logit_scale = 40;
    CheckLatent(c, seed);
    c.name = "64 rows, in segments";
    c.reduction = ops::Reduction::kSpans;
    c.logit_scale = 3;
    CheckLatent(c, seed);
  }
}

TEST(EmulatedDecode, MlaPortable) {
  const DecodeCheck mla = {.portable = true};
  for (const uint64_t seed : {1, 2}) {
    DecodeCheck c = mla;
    c.name = "4 heads, odd lengths";
    c.kv_lengths = {1, 31, 0, 33, 65, 257};
    c.num_sms = 3;
    CheckLatent(c, seed);
    c = mla;
    c.name = "16 heads, pages of 16, several queries, large logits";
    c.heads = 16;
    c.kv_lengths = {70, 130, 8};
    c.page_tokens = 16;
    c.query_tokens = {2, 1, 8};
    c.num_sms = 6;
    c.logit_scale = 20;
    CheckLatent(c, seed);
    c = mla;
    c.name = "40 heads, spans";
    c.heads = 40;
    c.kv_lengths = {600, 77};
    c.page_tokens = 128;
    c.reduction = ops::Reduction::kSpans;
    CheckLatent(c, seed);
  }
}

TEST(EmulatedDecode, MlaSixteenHeads) {
  for (const uint64_t seed : Seeds({4, 5})) {
    CheckLatent({.name = "mla 16", .heads = 16, .kv_lengths = {1, 65, 0, 257}, .num_sms = 3}, seed);
    CheckLatent({.name = "mla 16, few partial results",
                 .heads = 16,
                 .kv_lengths = {400, 30, 400},
                 .query_tokens = {1, 1, 2},
                 .num_sms = 7},
                seed);
    CheckLatent({.name = "mla 12 heads, many partial results",
                 .heads = 12,
                 .kv_lengths = {1290, 64},
                 .num_sms = 22},
                seed);
    CheckLatent({.name = "mla 32 rows, many partial results",
                 .heads = 16,
                 .kv_lengths = {1290},
                 .query_tokens = {2},
                 .num_sms = 20},
                seed);
    CheckLatent({.name = "mla 16, more blocks than tiles",
                 .heads = 16,
                 .kv_lengths = {130, 0, 5},
                 .num_sms = 9},
                seed);
    CheckLatent({.name = "mla 16, in segments",
                 .heads = 16,
                 .kv_lengths = {700, 300},
                 .reduction = ops::Reduction::kSpans,
                 .num_sms = 7},
                seed);
  }
}

// Partial results are float16, relative to a power of two that ends at 2^-46.
TEST(EmulatedDecode, MlaValuesBeyondFloat16) {
  for (const CacheCode code : {CacheCode::kBf16, CacheCode::kInt8, CacheCode::kE4m3}) {
    for (const int heads : {16, 32, 64}) {  // rows of the kernels for bf16
      if (code != CacheCode::kBf16 && heads > 16) continue;
      for (const float scale : {1e6f, 1e-6f, 1e-16f}) {
        CheckLatent({.name = "large or small values",
                     .heads = heads,
                     .kv_lengths = {300},
                     .code = code,
                     .num_sms = 3,
                     .value_scale = scale},
                    1);
      }
    }
  }
}

TEST(EmulatedDecode, MlaManyHeads) {
  for (const uint64_t seed : Seeds({6, 7})) {
    CheckLatent({.name = "mla 128", .heads = 128, .kv_lengths = {1, 65, 0, 257}, .num_sms = 4},
                seed);
    CheckLatent({.name = "mla 100 heads, 2 queries",
                 .heads = 100,
                 .kv_lengths = {70, 130},
                 .query_tokens = {2, 1},
                 .num_sms = 8},
                seed);
    CheckLatent({.name = "mla 128, few partial results",
                 .heads = 128,
                 .kv_lengths = {500, 0, 70},
                 .num_sms = 9},
                seed);
    CheckLatent({.name = "mla 40 heads, a row tile without rows",
                 .heads = 40,
                 .kv_lengths = {64, 500},
                 .query_tokens = {2, 1},
                 .num_sms = 12},
                seed);
    CheckLatent({.name = "mla 50 heads, many partial results",  // as many threads as can be watched
                 .heads = 50,
                 .kv_lengths = {1150},
                 .num_sms = 18},
                seed);
    CheckLatent({.name = "mla 128, in segments",
                 .heads = 128,
                 .kv_lengths = {300, 700},
                 .reduction = ops::Reduction::kSpans,
                 .num_sms = 9},
                seed);
  }
}

}  // namespace
}  // namespace fathom::cuda_test
