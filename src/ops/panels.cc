#include "ops/panels.h"

namespace fathom::ops::host {

void MultiplyPanel(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                   const linear::PackedWeight& w, int64_t panel, int64_t row_begin, int64_t row_end,
                   float* c, int64_t c_stride, const float* bias) {
  const int64_t column = panel * kernels::kPanelColumns;
  kernels::GemmParams p;
  p.a = a.data;
  p.a_stride = a.stride;
  if (a.rows != nullptr) {
    p.a_rows = a.rows + row_begin;
  } else {
    p.a = static_cast<const std::byte*>(a.data) + row_begin * a.stride * (a.is_bf16 ? 2 : 4);
  }
  p.b = w.data() + panel * PanelBytes(w);
  p.c = c + row_begin * c_stride;
  p.c_stride = c_stride;
  p.m = static_cast<int32_t>(row_end - row_begin);
  p.n = static_cast<int32_t>(std::min<int64_t>(kernels::kPanelColumns, w.rows() - column));
  p.k = w.cols();
  p.bias = bias != nullptr ? bias + column : nullptr;
  if (panel + 1 < NumPanels(w)) p.next_b = w.data() + (panel + 1) * PanelBytes(w);
  GemmFor(cpu, a.is_bf16, w.dtype())(p);
}

void Multiply(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& w,
              int64_t num_rows, float* c, int64_t c_stride, const float* bias) {
  if (num_rows == 0) return;
  constexpr int64_t kMinRows = 32;  // below, the rows of one panel stay together
  const int64_t panels = NumPanels(w);
  const int64_t threads = runtime.pool->num_threads();
  const int64_t wanted = (4 * threads + panels - 1) / panels;
  const int64_t row_cuts = std::max<int64_t>(1, std::min(wanted, num_rows / kMinRows));
  const int64_t pieces = panels * row_cuts;
  const int64_t grain = std::max(
      PanelRun(pieces, threads),
      Grain(pieces, PanelBytes(w) * std::max<int64_t>(1, num_rows / 8), static_cast<int>(threads)));
  runtime.pool->ParallelFor(pieces, grain, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t cut = i % row_cuts;
      const int64_t panel = i / row_cuts;
      MultiplyPanel(*runtime.cpu, a, w, panel, num_rows * cut / row_cuts,
                    num_rows * (cut + 1) / row_cuts, c + panel * kernels::kPanelColumns, c_stride,
                    bias);
    }
  });
}

}  // namespace fathom::ops::host
