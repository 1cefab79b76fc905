#pragma once
// The kernels of one instruction set. Plain data: the ISA files see nothing but this header.
#include "kernels/attention_span.h"
#include "kernels/gemm.h"
#include "kernels/pack.h"
#include "kernels/rows.h"

namespace fathom::kernels::cpu {

struct KernelTable {
  const char* isa;
  bool native_bf16;  // bf16 products in hardware

  GemmFn gemm_f32_f32;    // A f32, B f32
  GemmFn gemm_f32_bf16;   // A f32, B bf16 widened
  GemmFn gemm_bf16_bf16;  // both bf16

  PackFn pack_columns_f32_f32;
  PackFn pack_columns_f32_bf16;  // rounded to nearest even
  PackFn pack_columns_bf16_bf16;
  PackFn pack_rows_f32_f32;
  PackFn pack_rows_f32_bf16;
  PackFn pack_rows_bf16_bf16;

  RmsNormFn rms_norm;
  RopeFn rope;
  SiluMulFn silu_mul;
  AddRowFn add_row;
  AddScaledRowFn add_scaled_row;
  RoundRowFn round_row;
  WidenRowFn widen_row;
  ExpRowFn exp_row;

  SoftmaxSpanFn softmax_span;
  FoldSpanFn fold_span;
  DivideRowFn divide_row;
};

namespace scalar {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512bf16 {
extern const KernelTable kTable;
}

}  // namespace fathom::kernels::cpu
