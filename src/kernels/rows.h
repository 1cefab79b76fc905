#pragma once
// Row-wise kernels: one call, one row (SiluMul: several). Sums run in a fixed order of lanes that
// depends on the row's length alone.
#include <cstdint>

namespace fathom::kernels {

enum class RopeStyle : uint8_t { kInterleaved, kHalves };  // pairs (2i, 2i+1) or (i, i + d/2)

struct RmsNormParams {
  float* input = nullptr;           // [dim]
  const float* residual = nullptr;  // [dim] or null; input += residual first
  const float* weight = nullptr;    // [dim]
  float* output = nullptr;          // [dim], may be the input
  int64_t dim = 0;
  float eps = 0;
};

struct RopeParams {
  const float* input = nullptr;   // [dim]
  const float* cosine = nullptr;  // [dim / 2]
  const float* sine = nullptr;    // [dim / 2]
  float* output = nullptr;        // [dim], may be the input
  int32_t dim = 0;                // even
  RopeStyle style = RopeStyle::kHalves;
};

// Several rows of SwiGLU. The output is one of the two; bf16 is rounded to nearest even, with a
// zero after an odd dim (the left operand of a bf16 gemm).
struct SiluMulParams {
  const float* gate = nullptr;  // [rows, dim]
  const float* up = nullptr;    // [rows, dim]
  int64_t input_stride = 0;     // elements, of both
  float* output_f32 = nullptr;  // [rows, dim], may be the gate
  uint16_t* output_bf16 = nullptr;
  int64_t output_stride = 0;  // elements
  int64_t rows = 0;
  int64_t dim = 0;
};

using RmsNormFn = void (*)(const RmsNormParams&);
using RopeFn = void (*)(const RopeParams&);
using SiluMulFn = void (*)(const SiluMulParams&);
using AddRowFn = void (*)(float* target, const float* addend, int64_t n);  // target += addend
// target += weight * addend
using AddScaledRowFn = void (*)(float* target, const float* addend, float weight, int64_t n);
// To nearest even; writes a zero after an odd n (the left operand of a bf16 gemm).
using RoundRowFn = void (*)(const float* input, uint16_t* output, int64_t n);
using WidenRowFn = void (*)(const uint16_t* input, float* output, int64_t n);  // bf16 -> f32
using ExpRowFn = void (*)(const float* input, float* output, int64_t n);

}  // namespace fathom::kernels
