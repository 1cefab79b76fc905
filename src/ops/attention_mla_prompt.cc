#include <array>
#include <cstring>

#include "ops/attention_mla.h"

namespace fathom::ops::attention {
namespace {

constexpr int32_t kPanel = kernels::kPanelColumns;
constexpr int32_t kSpanPanels = kSpanTokens / kPanel;
constexpr int32_t kRowBlock = 64;  // rows whose scores are in flight
// Expanding a span costs as much as attending with ~400 queries; more queries a span than this no
// longer fit the cache with it.
constexpr int32_t kMaxItemTokens = 512;
constexpr int32_t kMinItemTokens = 128;  // when heads are fewer than threads

}  // namespace

struct MlaPrompt::Scratch {
  std::byte* q = nullptr;         // [tokens, EvenUp(nope) + EvenUp(rope)] bf16 or f32
  std::byte* latent_t = nullptr;  // panel [kv_lora_rank][32 keys]
  std::byte* latent = nullptr;    // [32 keys, EvenUp(kv_lora_rank)], left operand
  float* expanded = nullptr;      // [max(nope, 32), 32], before rounding
  std::byte* k_nope = nullptr;    // [8] panels [nope][32 keys]
  std::byte* k_pe = nullptr;      // [8] panels [rope][32 keys]
  std::byte* v = nullptr;         // [v panels] panels [256 keys][32]
  float* scores = nullptr;        // [kRowBlock, 256]
  uint16_t* p = nullptr;          // [kRowBlock, 256]
};

MlaPrompt::Scratch MlaPrompt::Carve(Carver& carver) const {
  const int64_t item = operands_.dot ? 2 : 4;  // bytes of a left operand and of an expanded panel
  const int64_t v_panels = (shape_.v_dim + kPanel - 1) / kPanel;
  Scratch s;
  s.q = carver.Take<std::byte>(
      tokens_per_item_ * (host::EvenUp(shape_.nope_dim) + host::EvenUp(shape_.rope_dim)) * item);
  s.latent_t = carver.Take<std::byte>(operands_.PanelElements(shape_.kv_lora_rank) *
                                      SizeOf(operands_.panel));
  s.latent = carver.Take<std::byte>(kPanel * host::EvenUp(shape_.kv_lora_rank) * item);
  s.expanded = carver.Take<float>(std::max<int64_t>(shape_.nope_dim, kPanel) * kPanel);
  s.k_nope = carver.Take<std::byte>(kSpanPanels * host::EvenUp(shape_.nope_dim) * kPanel * item);
  s.k_pe = carver.Take<std::byte>(kSpanPanels * operands_.PanelElements(shape_.rope_dim) *
                                  SizeOf(operands_.panel));
  s.v = carver.Take<std::byte>(v_panels * kSpanTokens * kPanel * item);
  s.scores = carver.Take<float>(kRowBlock * kSpanTokens);
  if (operands_.dot) s.p = carver.Take<uint16_t>(kRowBlock * kSpanTokens);
  return s;
}

MlaPrompt::MlaPrompt(const MlaShape& shape, const CacheFormat& format, const StepBucket& bucket,
                     int num_threads, std::byte* memory)
    : shape_(shape),
      operands_(shape.precision, format.Find(PlaneKind::kC)->dtype),
      expanded_(operands_.dot ? DType::kBF16 : DType::kF32),
      num_threads_(num_threads) {
  const int32_t longest = std::clamp(bucket.max_query_tokens, 1, kMaxItemTokens);
  const int32_t cuts = (2 * num_threads + shape.num_heads - 1) / shape.num_heads;
  tokens_per_item_ = std::min(longest, std::max(kMinItemTokens, longest / cuts));
  Carver carver(memory);
  memory_ = ItemMemory(carver, MaxItems(bucket, tokens_per_item_, shape.num_heads), num_threads,
                       tokens_per_item_, shape.v_dim, [this](Carver& one) { Carve(one); });
  bytes_ = carver.used();
}

void MlaPrompt::ExpandSpan(const kernels::cpu::KernelTable& cpu, const MlaCall& call,
                           const Item& item, int32_t span, const Scratch& s) const {
  const MlaWeights::Head& w = call.weights->heads[static_cast<size_t>(item.head)];
  const Plane& c_plane = *call.args.cache.format.Find(PlaneKind::kC);
  const Plane& pe_plane = *call.args.cache.format.Find(PlaneKind::kKPe);
  const PageReader reader = call.Reader(item);
  const int64_t rank = shape_.kv_lora_rank;
  const int64_t v_panels = host::NumPanels(w.uv);
  const int64_t item_bytes = operands_.dot ? 2 : 4;
  const int32_t first_key = span * kSpanTokens;
  const int32_t keys = std::min(kSpanTokens, item.num_keys() - first_key);
  std::array<const void*, kPanel> rows;
  std::array<const void*, kPanel> expanded_rows;
  for (int32_t i = 0; i < kPanel; ++i) {
    expanded_rows[static_cast<size_t>(i)] = s.expanded + i * kPanel;
  }

  for (int32_t block = 0; block * kPanel < keys; ++block) {
    const int32_t key = first_key + block * kPanel;
    const int32_t count = std::min(kPanel, keys - block * kPanel);
    reader.Rows(pe_plane, 0, key, count, 0, rows.data());
    operands_.PackColumns(cpu)(
        {rows.data(), count, shape_.rope_dim,
         s.k_pe + block * operands_.PanelElements(shape_.rope_dim) * SizeOf(operands_.panel)});
    reader.Rows(c_plane, 0, key, count, 0, rows.data());
    operands_.PackColumns(cpu)({rows.data(), count, rank, s.latent_t});

    // K^T = W_UK c^T: its rows are the panel's k, so only rounding is left to do.
    std::byte* const k_panel =
        s.k_nope + block * host::EvenUp(shape_.nope_dim) * kPanel * item_bytes;
    float* const k_f32 = operands_.dot ? s.expanded : reinterpret_cast<float*>(k_panel);
    kernels::GemmParams p;
    p.a = w.uk.data();
    p.a_stride = operands_.dot ? host::EvenUp(rank) : rank;
    p.b = s.latent_t;
    p.c = k_f32;
    p.c_stride = kPanel;
    p.m = shape_.nope_dim;
    p.n = kPanel;
    p.k = rank;
    host::GemmFor(cpu, operands_.dot, operands_.panel)(p);
    if (operands_.dot) {
      for (int32_t k = 0; k < shape_.nope_dim; k += kPanel) {
        for (int32_t i = 0; i < kPanel; ++i) {
          expanded_rows[static_cast<size_t>(i)] = s.expanded + (k + i) * kPanel;
        }
        cpu.pack_rows_f32_bf16({expanded_rows.data(), std::min(kPanel, shape_.nope_dim - k), kPanel,
                                k_panel + k * kPanel * item_bytes});
      }
    }

    // V = c W_UV^T.
    for (int32_t i = 0; i < count; ++i) {
      const void* row = rows[static_cast<size_t>(i)];
      std::byte* out = s.latent + i * host::EvenUp(rank) * item_bytes;
      if (operands_.dot == operands_.cached_bf16) {
        std::memcpy(out, row, static_cast<size_t>(rank * item_bytes));
      } else if (operands_.dot) {
        cpu.round_row(static_cast<const float*>(row), reinterpret_cast<uint16_t*>(out), rank);
      } else {
        cpu.widen_row(static_cast<const uint16_t*>(row), reinterpret_cast<float*>(out), rank);
      }
    }
    const host::RowsView latent{s.latent, host::EvenUp(rank), operands_.dot};
    for (int32_t i = 0; i < kPanel; ++i) {
      expanded_rows[static_cast<size_t>(i)] = s.expanded + i * kPanel;
    }
    for (int64_t panel = 0; panel < v_panels; ++panel) {
      std::byte* const v_panel = s.v + (panel * kSpanTokens + block * kPanel) * kPanel * item_bytes;
      const int64_t columns = std::min<int64_t>(kPanel, shape_.v_dim - panel * kPanel);
      host::MultiplyPanel(cpu, latent, w.uv, panel, count, s.expanded, kPanel, nullptr, panel + 1);
      const kernels::PackParams pack{expanded_rows.data(), count, columns, v_panel};
      (operands_.dot ? cpu.pack_rows_f32_bf16 : cpu.pack_rows_f32_f32)(pack);
    }
  }
}

void MlaPrompt::Attend(const kernels::cpu::KernelTable& cpu, const MlaCall& call, const Item& item,
                       int32_t span, const Scratch& s, const State& out) const {
  const bool dot = operands_.dot;
  const int64_t item_bytes = dot ? 2 : 4;
  const int64_t nope_stride = host::EvenUp(shape_.nope_dim);
  const int64_t q_stride = nope_stride + host::EvenUp(shape_.rope_dim);
  for (int32_t t = 0; t < item.num_tokens; ++t) {
    const float* q = call.Query(item.first_token + t, item.head);
    std::byte* row = s.q + t * q_stride * item_bytes;
    std::byte* pe = row + nope_stride * item_bytes;
    if (dot) {
      cpu.round_row(q, reinterpret_cast<uint16_t*>(row), shape_.nope_dim);
      cpu.round_row(q + shape_.nope_dim, reinterpret_cast<uint16_t*>(pe), shape_.rope_dim);
    } else {
      std::memcpy(row, q, static_cast<size_t>(shape_.nope_dim) * sizeof(float));
      std::memcpy(pe, q + shape_.nope_dim, static_cast<size_t>(shape_.rope_dim) * sizeof(float));
    }
  }
  const int32_t first_key = span * kSpanTokens;
  const int64_t v_panels = (shape_.v_dim + kPanel - 1) / kPanel;
  const kernels::GemmFn from_pages = host::GemmFor(cpu, dot, operands_.panel);
  const kernels::GemmFn from_expanded = host::GemmFor(cpu, dot, expanded_);
  for (int32_t row = 0; row < item.num_tokens; row += kRowBlock) {
    const int32_t rows = std::min(kRowBlock, item.num_tokens - row);
    // What the block's last row sees: later keys would only add zeros.
    const int32_t keys = std::min(kSpanTokens, item.first_keys + row + rows - 1 - first_key);
    if (keys <= 0) {
      std::fill_n(out.l + row, rows, 0.0F);
      continue;
    }
    kernels::GemmParams p;
    p.m = rows;
    p.a_stride = q_stride;
    p.c_stride = kSpanTokens;
    const std::byte* q = s.q + row * q_stride * item_bytes;
    for (int32_t block = 0; block * kPanel < keys; ++block) {
      p.n = std::min(kPanel, keys - block * kPanel);
      p.c = s.scores + block * kPanel;
      p.a = q;
      p.b = s.k_nope + block * nope_stride * kPanel * item_bytes;
      p.k = shape_.nope_dim;
      p.accumulate = false;
      from_expanded(p);
      p.a = q + nope_stride * item_bytes;
      p.b = s.k_pe + block * operands_.PanelElements(shape_.rope_dim) * SizeOf(operands_.panel);
      p.k = shape_.rope_dim;
      p.accumulate = true;
      from_pages(p);
    }
    SoftmaxRows(cpu, item, span, row, rows, 1, shape_.softmax_scale, s.scores, s.p, out);
    p.a = dot ? static_cast<const void*>(s.p) : s.scores;
    p.a_stride = kSpanTokens;
    p.c_stride = shape_.v_dim;
    p.k = keys;
    p.accumulate = false;
    for (int64_t panel = 0; panel < v_panels; ++panel) {
      p.n = static_cast<int32_t>(std::min<int64_t>(kPanel, shape_.v_dim - panel * kPanel));
      p.b = s.v + panel * kSpanTokens * kPanel * item_bytes;
      p.c = out.o + int64_t{row} * shape_.v_dim + panel * kPanel;
      from_expanded(p);
    }
  }
}

void MlaPrompt::Run(const host::Runtime& runtime, const MlaCall& call) const {
  const Role role = Role::kPrompt;
  const int64_t num_items =
      ListItems(call.inputs, &role, tokens_per_item_, shape_.num_heads, memory_.items);
  const kernels::cpu::KernelTable& cpu = *runtime.cpu;
  const auto compute = [&](const Item& item, int32_t span, int worker, const State& out) {
    Carver carver = memory_.ScratchOf(worker);
    const Scratch scratch = Carve(carver);
    ExpandSpan(cpu, call, item, span, scratch);
    Attend(cpu, call, item, span, scratch, out);
  };
  const auto finish = [&](const Item& item, const State& state) {
    for (int32_t t = 0; t < item.num_tokens; ++t) {
      cpu.divide_row(state.o + int64_t{t} * shape_.v_dim, state.l[t],
                     call.Out(item.first_token + t, item.head), shape_.v_dim);
    }
  };
  ItemRunner(num_threads_, tokens_per_item_, shape_.v_dim, memory_.states)
      .Run(runtime, memory_.items, num_items, 1, compute, finish);
}

}  // namespace fathom::ops::attention
