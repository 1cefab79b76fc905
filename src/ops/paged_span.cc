#include "ops/paged_span.h"

#include <algorithm>
#include <cstring>

#include "ops/panels.h"

namespace fathom::ops::attention {
namespace {

constexpr int32_t kPanel = kernels::kPanelColumns;

// Asks for rows of a plane that will be read soon.
void Ask(const void* const* rows, int32_t count, const Plane& plane) {
  constexpr int32_t kLine = 64;
  const int32_t bytes = plane.dim * SizeOf(plane.dtype);
  for (int32_t row = 0; row < count; ++row) {
    const auto* const at = static_cast<const std::byte*>(rows[row]);
    for (int32_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(at + byte, 0, 2);
  }
}

}  // namespace

PagedSpan::Scratch PagedSpan::Carve(Carver& carver) const {
  Scratch scratch;
  scratch.q = carver.Take<std::byte>(max_rows * q_stride() * (operands.dot ? 2 : 4));
  scratch.scores = carver.Take<float>(max_rows * kSpanTokens);
  if (operands.dot) scratch.p = carver.Take<uint16_t>(max_rows * kSpanTokens);
  const int64_t value_panels = (value_dim + kPanel - 1) / kPanel;
  scratch.panel =
      carver.Take<std::byte>(std::max(operands.PanelElements(key_dim),
                                      value_panels * operands.PanelElements(kSpanTokens)) *
                             SizeOf(operands.panel));
  return scratch;
}

int64_t PagedSpan::q_stride() const { return host::EvenUp(key_dim); }

void PagedSpan::StageQuery(const kernels::cpu::KernelTable& cpu, const float* q, int64_t dim,
                           int64_t element, int64_t row, const Scratch& scratch) const {
  const int64_t at = row * q_stride() + element;
  if (operands.dot) {
    cpu.round_row(q, reinterpret_cast<uint16_t*>(scratch.q) + at, dim);
  } else {
    std::memcpy(reinterpret_cast<float*>(scratch.q) + at, q,
                static_cast<size_t>(dim) * sizeof(float));
  }
}

void PagedSpan::Gather(const PageReader& reader, int64_t head, int64_t first, int32_t count,
                       SpanRows& rows) const {
  for (int32_t i = 0; i < num_key_planes; ++i) {
    const auto at = static_cast<size_t>(i);
    reader.Rows(key_planes[at], head, first, count, 0, rows.keys[at].data() + rows.count);
  }
  if (values_are_keys) {
    std::copy_n(rows.keys[0].data() + rows.count, count, rows.values.data() + rows.count);
  } else {
    reader.Rows(values, head, first, count, 0, rows.values.data() + rows.count);
  }
  rows.count += count;
}

void PagedSpan::Run(const kernels::cpu::KernelTable& cpu, const PageReader& reader,
                    const Item& item, int32_t span, const Scratch& scratch,
                    const State& out) const {
  const int32_t first_key = span * kSpanTokens;
  SpanRows rows;
  Gather(reader, item.head, first_key, std::min(kSpanTokens, item.num_keys() - first_key), rows);
  const auto num_rows = static_cast<int32_t>(item.num_tokens * rows_per_token);
  Attend(
      cpu, rows, num_rows, scratch,
      [&] {
        SoftmaxRows(cpu, item, span, 0, num_rows, rows_per_token, scale, scratch.scores, scratch.p,
                    out);
      },
      out);
}

void PagedSpan::Attend(const kernels::cpu::KernelTable& cpu, const SpanRows& rows, int32_t num_rows,
                       const Scratch& scratch, FunctionRef<void()> softmax,
                       const State& out) const {
  const int32_t keys = rows.count;
  const kernels::GemmFn gemm = host::GemmFor(cpu, operands.dot, operands.panel);
  // A core alone has too few misses in flight to keep the memory busy while it computes, so packing
  // a block asks for the keys of the next one and for its own values, which are used a little
  // later.
  kernels::GemmParams p;
  p.m = num_rows;
  p.b = scratch.panel;
  p.a = scratch.q;
  p.a_stride = q_stride();
  p.k = key_dim;
  p.c_stride = kSpanTokens;
  for (int32_t key = 0; key < keys; key += kPanel) {
    p.n = std::min(kPanel, keys - key);
    int64_t element = 0;
    for (int32_t i = 0; i < num_key_planes; ++i) {
      const Plane& plane = key_planes[static_cast<size_t>(i)];
      const void* const* from = rows.keys[static_cast<size_t>(i)].data() + key;
      if (key == 0) Ask(from, p.n, plane);
      kernels::PackParams pack{from, p.n, plane.dim,
                               scratch.panel + element * kPanel * SizeOf(operands.panel)};
      pack.ahead[0] = {from + kPanel, std::min(kPanel, keys - key - kPanel)};
      if (!values_are_keys) pack.ahead[1] = {rows.values.data() + key, p.n};
      operands.PackColumns(cpu)(pack);
      element += plane.dim;
    }
    p.c = scratch.scores + key;
    gemm(p);
  }

  softmax();

  p.a = operands.dot ? static_cast<const void*>(scratch.p) : scratch.scores;
  p.a_stride = kSpanTokens;
  p.c_stride = value_dim;
  p.k = keys;
  const int64_t panel_bytes = operands.PanelElements(keys) * SizeOf(operands.panel);
  operands.PackRows(cpu)({rows.values.data(), keys, value_dim, scratch.panel, panel_bytes});
  for (int64_t column = 0; column < value_dim; column += kPanel) {
    p.n = static_cast<int32_t>(std::min<int64_t>(kPanel, value_dim - column));
    p.b = scratch.panel + column / kPanel * panel_bytes;
    p.c = out.o + column;
    gemm(p);
  }
}

}  // namespace fathom::ops::attention
