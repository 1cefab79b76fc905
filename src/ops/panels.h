#pragma once
// Products with packed weights on the host: what linear, moe and attention share.
#include <cstdint>

#include "ops/host.h"
#include "ops/linear.h"

namespace fathom::ops::host {

inline int64_t EvenUp(int64_t n) { return (n + 1) / 2 * 2; }

// Elements from one staged bf16 row of k to the next: an odd number of cache lines, so that the
// rows of a tile do not all fall into one cache set when k is a power of two.
inline int64_t StagedStride(int64_t k) { return ((k + 31) / 32 | 1) * 32; }

// The kernel for rows of A as bf16 or f32 and panels of `panel_dtype`; bf16 rows need bf16 panels.
inline kernels::GemmFn GemmFor(const kernels::cpu::KernelTable& cpu, bool a_is_bf16,
                               DType panel_dtype) {
  if (panel_dtype == DType::kF32) {
    FATHOM_CHECK(!a_is_bf16, "bf16 rows over an f32 panel");
    return cpu.gemm_f32_f32;
  }
  return a_is_bf16 ? cpu.gemm_bf16_bf16 : cpu.gemm_f32_bf16;
}

// The left operand of a product: rows that lie `stride` elements apart, f32 or bf16.
struct RowsView {
  const void* data = nullptr;
  int64_t stride = 0;
  bool is_bf16 = false;
  const int32_t* rows = nullptr;  // row i is row rows[i] of data; null: row i
};

inline int64_t NumPanels(const linear::PackedWeight& w) {
  return (w.rows() + kernels::kPanelColumns - 1) / kernels::kPanelColumns;
}
inline int64_t PanelBytes(const linear::PackedWeight& w) {
  return (w.dtype() == DType::kBF16 ? EvenUp(w.cols()) : w.cols()) * kernels::kPanelColumns *
         SizeOf(w.dtype());
}

// Panels that a thread takes at once: each asks for the next one ahead, and enough pieces remain
// for all threads to end together.
inline int64_t PanelRun(int64_t pieces, int64_t threads) {
  constexpr int64_t kRun = 4;
  return std::clamp<int64_t>(pieces / (16 * threads), 1, kRun);
}

// Rows [row_begin, row_end) of the panel's columns of C = A W^T (+ bias); `c` is row 0 of those
// columns, `bias` that of all columns.
void MultiplyPanel(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                   const linear::PackedWeight& w, int64_t panel, int64_t row_begin, int64_t row_end,
                   float* c, int64_t c_stride, const float* bias);

// All of C [num_rows, N], cut over the pool by panels and, where those are few, by rows.
void Multiply(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& w,
              int64_t num_rows, float* c, int64_t c_stride, const float* bias);

}  // namespace fathom::ops::host
