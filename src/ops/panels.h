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

  // The rows from `row` on.
  RowsView From(int64_t row) const;
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

// The panel's columns of C [num_rows, N] = A W^T (+ bias): `c` is their first element, `bias` that
// of all columns. `next` is the panel that is read after it, if there is one.
void MultiplyPanel(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                   const linear::PackedWeight& w, int64_t panel, int64_t num_rows, float* c,
                   int64_t c_stride, const float* bias, int64_t next);

// How many panels a gated product has: those of the gate.
inline int64_t NumGatedPanels(const linear::PackedWeight& gate_up) {
  return (gate_up.rows() / 2 + kernels::kPanelColumns - 1) / kernels::kPanelColumns;
}

// What a gated product writes: rows of the left operand of the next product, bf16 or f32.
struct GatedRows {
  void* data = nullptr;
  int64_t stride = 0;  // elements
  bool is_bf16 = false;

  GatedRows From(int64_t row) const {
    return {static_cast<std::byte*>(data) + row * stride * (is_bf16 ? 2 : 4), stride, is_bf16};
  }
};

// The columns of gate panels [begin, end) of silu(A G^T) * (A U^T) [num_rows, N / 2], with gate_up
// = [G; U]. Gate and up pass through a buffer on the stack: a whole product of them would be
// written to memory and read again. An odd N / 2 in bf16 is followed by a zero.
void MultiplyGatedPanels(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                         const linear::PackedWeight& gate_up, int64_t begin, int64_t end,
                         int64_t num_rows, const GatedRows& out);

// All of C [num_rows, N], cut over the pool by panels and, where those are few, by rows.
void Multiply(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& w,
              int64_t num_rows, float* c, int64_t c_stride, const float* bias);

// The same for all of a gated product.
void MultiplyGated(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& gate_up,
                   int64_t num_rows, const GatedRows& out);

}  // namespace fathom::ops::host
