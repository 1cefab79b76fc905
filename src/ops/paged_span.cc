#include "ops/paged_span.h"

#include <cstring>

#include "ops/panels.h"

namespace fathom::ops::attention {
namespace {
constexpr int32_t kPanel = kernels::kPanelColumns;
}

PagedSpan::Scratch PagedSpan::Carve(Carver& carver) const {
  Scratch scratch;
  scratch.q = carver.Take<std::byte>(max_rows * q_stride() * (operands.dot ? 2 : 4));
  scratch.scores = carver.Take<float>(max_rows * kSpanTokens);
  if (operands.dot) scratch.p = carver.Take<uint16_t>(max_rows * kSpanTokens);
  int64_t key_bytes = 0;
  for (const Plane& plane : key_planes) {
    key_bytes += int64_t{plane.dim} * SizeOf(plane.dtype);
  }
  scratch.gathered = carver.Take<std::byte>(kSpanTokens * key_bytes);
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

void PagedSpan::Run(const kernels::cpu::KernelTable& cpu, const PageReader& reader,
                    const Item& item, int32_t span, const Scratch& scratch,
                    const State& out) const {
  const int32_t first_key = span * kSpanTokens;
  const int32_t keys = std::min(kSpanTokens, item.num_keys() - first_key);
  const auto rows = static_cast<int32_t>(item.num_tokens * rows_per_token);
  const kernels::GemmFn gemm = host::GemmFor(cpu, operands.dot, operands.panel);
  std::array<const void*, kSpanTokens> pointers;

  kernels::GemmParams p;
  p.m = rows;
  p.b = scratch.panel;
  p.a = scratch.q;
  p.a_stride = q_stride();
  p.k = key_dim;
  p.c_stride = kSpanTokens;
  // The span's keys are first copied in the order they lie in, in one go: a long run of reads is
  // what the memory is fast at, the order of packing is not.
  int64_t plane_offset = 0;
  for (int32_t i = 0; i < num_key_planes; ++i) {
    const Plane& plane = key_planes[static_cast<size_t>(i)];
    const int64_t bytes = int64_t{plane.dim} * SizeOf(plane.dtype);
    reader.Rows(plane, item.head, first_key, keys, 0, pointers.data());
    for (int32_t row = 0; row < keys; ++row) {
      std::memcpy(scratch.gathered + plane_offset + row * bytes, pointers[static_cast<size_t>(row)],
                  static_cast<size_t>(bytes));
    }
    plane_offset += kSpanTokens * bytes;
  }
  for (int32_t key = 0; key < keys; key += kPanel) {
    p.n = std::min(kPanel, keys - key);
    int64_t element = 0;
    plane_offset = 0;
    for (int32_t i = 0; i < num_key_planes; ++i) {
      const Plane& plane = key_planes[static_cast<size_t>(i)];
      const int64_t bytes = int64_t{plane.dim} * SizeOf(plane.dtype);
      for (int32_t row = 0; row < p.n; ++row) {
        pointers[static_cast<size_t>(row)] = scratch.gathered + plane_offset + (key + row) * bytes;
      }
      operands.PackColumns(cpu)({pointers.data(), p.n, plane.dim,
                                 scratch.panel + element * kPanel * SizeOf(operands.panel)});
      element += plane.dim;
      plane_offset += kSpanTokens * bytes;
    }
    p.c = scratch.scores + key;
    gemm(p);
  }

  SoftmaxRows(cpu, item, span, 0, rows, rows_per_token, scale, scratch.scores, scratch.p, out);

  p.a = operands.dot ? static_cast<const void*>(scratch.p) : scratch.scores;
  p.a_stride = kSpanTokens;
  p.c_stride = value_dim;
  p.k = keys;
  if (values_are_keys) {
    for (int32_t row = 0; row < keys; ++row) {
      pointers[static_cast<size_t>(row)] =
          scratch.gathered + row * values.dim * SizeOf(values.dtype);
    }
  } else {
    reader.Rows(values, item.head, first_key, keys, 0, pointers.data());
  }
  const int64_t panel_bytes = operands.PanelElements(keys) * SizeOf(operands.panel);
  operands.PackRows(cpu)({pointers.data(), keys, value_dim, scratch.panel, panel_bytes});
  for (int64_t column = 0; column < value_dim; column += kPanel) {
    p.n = static_cast<int32_t>(std::min<int64_t>(kPanel, value_dim - column));
    p.b = scratch.panel + column / kPanel * panel_bytes;
    p.c = out.o + column;
    gemm(p);
  }
}

}  // namespace fathom::ops::attention
