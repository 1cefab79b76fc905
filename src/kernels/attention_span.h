#pragma once
// The two row-wise steps of span attention (ops/attention.h).
#include <cstdint>

namespace fathom::kernels {

// One query row against one span: p_t = exp(scale * (s_t - max s)) over the first `valid` keys,
// zero for the rest up to `padded`; m = scale * max s, l = sum p. Terms past `valid` change no bit.
struct SoftmaxSpanParams {
  const float* scores = nullptr;  // [valid]
  int32_t valid = 0;              // >= 1
  int32_t padded = 0;             // multiple of 2, at most 256
  float scale = 1;
  float* p_f32 = nullptr;      // [padded]; exactly one of the two outputs is given
  uint16_t* p_bf16 = nullptr;  // [padded]
  float* m = nullptr;
  float* l = nullptr;
};

// (m, l, o) of a row := fold of it with a span's (m, l, o). A row that has seen nothing has
// m = -infinity, l = 0, o = 0.
struct FoldSpanParams {
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;  // [dim]
  float span_m = 0;
  float span_l = 0;
  const float* span_o = nullptr;  // [dim]
  int32_t dim = 0;
};

using SoftmaxSpanFn = void (*)(const SoftmaxSpanParams&);
using FoldSpanFn = void (*)(const FoldSpanParams&);
// output = input / divisor
using DivideRowFn = void (*)(const float* input, float divisor, float* output, int64_t n);

}  // namespace fathom::kernels
