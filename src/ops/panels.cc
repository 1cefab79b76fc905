#include "ops/panels.h"

#include <array>

namespace fathom::ops::host {
namespace {

constexpr int64_t kPanel = kernels::kPanelColumns;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Calls fn(panels, rows) over the pool: cut by panels and, where those are few, by rows.
template <class Fn>
void ForPanels(const Runtime& runtime, int64_t panels, int64_t panel_bytes, int64_t num_rows,
               const Fn& fn) {
  if (num_rows == 0) return;
  constexpr int64_t kMinRows = 32;  // below, the rows of one panel stay together
  const int64_t threads = runtime.pool->num_threads();
  const int64_t wanted = (4 * threads + panels - 1) / panels;
  const int64_t cuts = std::max<int64_t>(1, std::min(wanted, num_rows / kMinRows));
  const int64_t pieces = panels * cuts;
  const int64_t grain = std::max(
      PanelRun(pieces, threads),
      Grain(pieces, panel_bytes * std::max<int64_t>(1, num_rows / 8), static_cast<int>(threads)));
  runtime.pool->ParallelFor(pieces, grain, [&](int64_t begin, int64_t end, int /*worker*/) {
    if (cuts == 1) return fn(Range{begin, end}, Range{0, num_rows});
    for (int64_t i = begin; i < end; ++i) {
      const int64_t panel = i / cuts;
      const int64_t cut = i % cuts;
      fn(Range{panel, panel + 1}, Range{num_rows * cut / cuts, num_rows * (cut + 1) / cuts});
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
  ForPanels(runtime, NumPanels(w), PanelBytes(w), num_rows, [&](Range panels, Range rows) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      MultiplyPanel(*runtime.cpu, a.From(rows.begin), w, panel, rows.end - rows.begin,
                    c + rows.begin * c_stride + panel * kPanel, c_stride, bias, panel + 1);
    }
  });
}

void MultiplyGatedPanels(const kernels::cpu::KernelTable& cpu, const RowsView& a,
                         const linear::PackedWeight& gate_up, int64_t begin, int64_t end,
                         int64_t num_rows, const GatedRows& out) {
  // What waits on the stack. Many rows pass one gate panel and its up panel in blocks, about as
  // large as the kernel's own; few rows take a run of panels of each, so that memory is read in
  // long pieces.
  constexpr int64_t kBlockRows = 96;
  constexpr int64_t kSums = kBlockRows * 3 * kPanel;
  alignas(64) std::array<float, kSums> sums;
  if (num_rows == 0) return;
  const int64_t dim = gate_up.rows() / 2;
  const int64_t blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  const int64_t block_rows = (num_rows + blocks - 1) / blocks;
  const int64_t run = (kSums / (block_rows * kPanel) - 1) / 2;
  for (int64_t panel = begin; panel < end; panel += run) {
    const int64_t gates = std::min(run, end - panel);
    const int64_t first = panel * kPanel;
    const int64_t columns = std::min(gates * kPanel, dim - first);
    // Up follows gate: its columns may begin inside a panel.
    const int64_t up = (dim + first) / kPanel;
    const int64_t ups = (dim + first + columns - 1) / kPanel + 1 - up;
    const int64_t stride = (gates + ups) * kPanel;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t row = num_rows * i / blocks;
      const int64_t rows = num_rows * (i + 1) / blocks - row;
      const auto at = [&](int64_t j) {  // the j-th panel of the run, and what is read after it
        if (j < gates) return panel + j;
        if (j < gates + ups) return up + j - gates;
        return i + 1 < blocks ? panel : panel + gates;
      };
      for (int64_t j = 0; j < gates + ups; ++j) {
        MultiplyPanel(cpu, a.From(row), gate_up, at(j), rows, sums.data() + j * kPanel, stride,
                      nullptr, at(j + 1));
      }
      kernels::SiluMulParams p;
      p.gate = sums.data();
      p.up = sums.data() + gates * kPanel + (dim + first) % kPanel;
      p.input_stride = stride;
      const int64_t place = row * out.stride + first;
      if (out.is_bf16) {
        p.output_bf16 = static_cast<uint16_t*>(out.data) + place;
      } else {
        p.output_f32 = static_cast<float*>(out.data) + place;
      }
      p.output_stride = out.stride;
      p.rows = rows;
      p.dim = columns;
      cpu.silu_mul(p);
    }
  }
}

void MultiplyGated(const Runtime& runtime, const RowsView& a, const linear::PackedWeight& gate_up,
                   int64_t num_rows, const GatedRows& out) {
  ForPanels(runtime, NumGatedPanels(gate_up), 2 * PanelBytes(gate_up), num_rows,
            [&](Range panels, Range rows) {
              MultiplyGatedPanels(*runtime.cpu, a.From(rows.begin), gate_up, panels.begin,
                                  panels.end, rows.end - rows.begin, out.From(rows.begin));
            });
}

}  // namespace fathom::ops::host
