#include "ops/panels.h"

#include <array>

namespace fathom::ops::host {
namespace {

constexpr int64_t kPanel = kernels::kPanelColumns;

// Calls fn(panel, row_begin, row_end) over the pool: cut by panels and, where those are few, by
// rows.
template <class Fn>
void ForPanels(const Runtime& runtime, int64_t panels, int64_t panel_bytes, int64_t num_rows,
               const Fn& fn) {
  if (num_rows == 0) return;
  constexpr int64_t kMinRows = 32;  // below, the rows of one panel stay together
  const int64_t threads = runtime.pool->num_threads();
  const int64_t wanted = (4 * threads + panels - 1) / panels;
  const int64_t row_cuts = std::max<int64_t>(1, std::min(wanted, num_rows / kMinRows));
  const int64_t pieces = panels * row_cuts;
  const int64_t grain = std::max(
      PanelRun(pieces, threads),
      Grain(pieces, panel_bytes * std::max<int64_t>(1, num_rows / 8), static_cast<int>(threads)));
  runtime.pool->ParallelFor(pieces, grain, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t cut = i % row_cuts;
      fn(i / row_cuts, num_rows * cut / row_cuts, num_rows * (cut + 1) / row_cuts);
    }
  });
}

}  // namespace

RowsView RowsView::From(int64_t row) const {
  RowsView from = *this;
  if (rows != nullptr) {
    from.rows += row;
  } else {
    from.data = static_cast<const std::byte*>(data) + row * stride * (is_bf16 ? 2 : 4);
  }
  return from;
}

void MultiplyPanel(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                   const linear::PackedWeight& w, int64_t panel, int64_t num_rows, float* c,
                   int64_t c_stride, const float* bias, int64_t next) {
  const int64_t column = panel * kPanel;
  kernels::GemmParams p;
  p.a = a.data;
  p.a_stride = a.stride;
  p.a_rows = a.rows;
  p.b = w.data() + panel * PanelBytes(w);
  p.c = c;
  p.c_stride = c_stride;
  p.m = static_cast<int32_t>(num_rows);
  p.n = static_cast<int32_t>(std::min(kPanel, w.rows() - column));
  p.k = w.cols();
  p.bias = bias != nullptr ? bias + column : nullptr;
  if (next < NumPanels(w)) p.next_b = w.data() + next * PanelBytes(w);
  GemmFor(cpu, a.is_bf16, w.dtype())(p);
}

void Multiply(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& w,
              int64_t num_rows, float* c, int64_t c_stride, const float* bias) {
  ForPanels(runtime, NumPanels(w), PanelBytes(w), num_rows,
            [&](int64_t panel, int64_t row_begin, int64_t row_end) {
              MultiplyPanel(*runtime.cpu, a.From(row_begin), w, panel, row_end - row_begin,
                            c + row_begin * c_stride + panel * kPanel, c_stride, bias, panel + 1);
            });
}

void MultiplyGatedPanel(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                        const linear::PackedWeight& gate_up, int64_t panel, int64_t row_begin,
                        int64_t row_end, const GatedRows& out) {
  constexpr int64_t kRows = 96;  // that wait at a time: about the kernel's own block
  constexpr int64_t kStride = 3 * kPanel;
  const int64_t dim = gate_up.rows() / 2;
  const int64_t first = panel * kPanel;
  const int64_t columns = std::min(kPanel, dim - first);
  // U follows G: its columns may begin inside a panel, and then lie in two.
  const int64_t up = (dim + first) / kPanel;
  const int64_t up_end = (dim + first + columns - 1) / kPanel + 1;
  const int64_t up_column = kPanel + (dim + first) % kPanel;
  alignas(64) std::array<float, kRows * kStride> sums;
  const int64_t num_rows = row_end - row_begin;
  const int64_t blocks = (num_rows + kRows - 1) / kRows;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = row_begin + num_rows * i / blocks;
    const int64_t rows = row_begin + num_rows * (i + 1) / blocks - begin;
    const RowsView block = a.From(begin);
    MultiplyPanel(cpu, block, gate_up, panel, rows, sums.data(), kStride, nullptr, up);
    for (int64_t p = up; p < up_end; ++p) {
      const int64_t next = p + 1 < up_end ? p + 1 : i + 1 < blocks ? panel : panel + 1;
      MultiplyPanel(cpu, block, gate_up, p, rows, sums.data() + (p - up + 1) * kPanel, kStride,
                    nullptr, next);
    }
    kernels::SiluMulParams p;
    p.gate = sums.data();
    p.up = sums.data() + up_column;
    p.input_stride = kStride;
    const int64_t at = begin * out.stride + first;
    if (out.is_bf16) {
      p.output_bf16 = static_cast<uint16_t*>(out.data) + at;
    } else {
      p.output_f32 = static_cast<float*>(out.data) + at;
    }
    p.output_stride = out.stride;
    p.rows = rows;
    p.dim = columns;
    cpu.silu_mul(p);
  }
}

void MultiplyGated(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& gate_up,
                   int64_t num_rows, const GatedRows& out) {
  ForPanels(runtime, NumGatedPanels(gate_up), 2 * PanelBytes(gate_up), num_rows,
            [&](int64_t panel, int64_t row_begin, int64_t row_end) {
              MultiplyGatedPanel(*runtime.cpu, a, gate_up, panel, row_begin, row_end, out);
            });
}

}  // namespace fathom::ops::host
