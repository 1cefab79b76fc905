#include <cstring>

#include "ops/attention_mla.h"

namespace fathom::ops::attention {
namespace {

constexpr int32_t kWindowTokens = 64;
constexpr int32_t kItemRows = 64;  // of 576 elements: queries and states fit the cache

}  // namespace

MlaGenerated::MlaGenerated(const MlaShape& shape, const CacheFormat& format,
                           const StepBucket& bucket, int num_threads, std::byte* memory)
    : shape_(shape),
      span_{.key_planes = {*format.Find(PlaneKind::kC), *format.Find(PlaneKind::kKPe)},
            .num_key_planes = 2,
            .values = *format.Find(PlaneKind::kC),
            .values_are_keys = true,
            .operands = Operands(shape.precision, format.Find(PlaneKind::kC)->dtype),
            .scale = shape.softmax_scale,
            .rows_per_token = shape.num_heads,
            .key_dim = int64_t{shape.kv_lora_rank} + shape.rope_dim,
            .value_dim = shape.kv_lora_rank},
      num_threads_(num_threads),
      window_tokens_(std::min(kWindowTokens, std::max(bucket.num_tokens, 1))),
      tokens_per_item_(std::clamp(kItemRows / shape.num_heads, 1,
                                  std::min(window_tokens_, std::max(bucket.max_query_tokens, 1)))) {
  span_.max_rows = int64_t{tokens_per_item_} * shape.num_heads;
  const int64_t rows = int64_t{window_tokens_} * shape.num_heads;
  Carver carver(memory);
  tokens_ = carver.Take<int32_t>(window_tokens_);
  if (span_.operands.dot) q_nope_ = carver.Take<std::byte>(rows * host::EvenUp(shape.nope_dim) * 2);
  q_ = carver.Take<float>(rows * span_.key_dim);
  o_ = carver.Take<std::byte>(rows * shape.kv_lora_rank * (span_.operands.dot ? 2 : 4));
  out_ = carver.Take<float>(rows * shape.v_dim);
  memory_ = ItemMemory(carver, MaxItems(bucket, tokens_per_item_, 1), num_threads, span_.max_rows,
                       shape.kv_lora_rank, [this](Carver& one) { span_.Carve(one); });
  bytes_ = carver.used();
}

void MlaGenerated::Run(const host::Runtime& runtime, const MlaCall& call) const {
  const Role role = Role::kGenerated;
  const int64_t num_items = ListItems(call.inputs, &role, tokens_per_item_, 1, memory_.items);
  for (int64_t first = 0; first < num_items;) {
    int64_t last = first;
    int32_t tokens = 0;
    while (last < num_items && tokens + memory_.items[last].num_tokens <= window_tokens_) {
      tokens += memory_.items[last++].num_tokens;
    }
    RunWindow(runtime, call, memory_.items + first, last - first);
    first = last;
  }
}

void MlaGenerated::RunWindow(const host::Runtime& runtime, const MlaCall& call, const Item* items,
                             int64_t num_items) const {
  const kernels::cpu::KernelTable& cpu = *runtime.cpu;
  const bool dot = span_.operands.dot;
  const int64_t heads = shape_.num_heads;
  const int64_t rank = shape_.kv_lora_rank;
  const int64_t nope = shape_.nope_dim;
  int32_t tokens = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    for (int32_t t = 0; t < items[i].num_tokens; ++t) tokens_[tokens++] = items[i].first_token + t;
  }
  // Items of the window name tokens by their place in it.
  const auto place = [&](const Item& item) {
    return std::lower_bound(tokens_, tokens_ + tokens, item.first_token) - tokens_;
  };

  // q_lat = W_UK^T q_nope beside q_pe.
  host::ForRows(runtime, tokens, heads * (nope + shape_.rope_dim) * 6, [&](int64_t i) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* q = call.Query(tokens_[i], h);
      if (dot) {
        cpu.round_row(
            q, reinterpret_cast<uint16_t*>(q_nope_) + (i * heads + h) * host::EvenUp(nope), nope);
      }
      std::memcpy(q_ + (i * heads + h) * span_.key_dim + rank, q + nope,
                  static_cast<size_t>(shape_.rope_dim) * sizeof(float));
    }
  });
  // One head's product is small: take heads, not panels, as pieces.
  runtime.pool->ParallelFor(heads, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t h = begin; h < end; ++h) {
      const linear::PackedWeight& w = call.weights->heads[static_cast<size_t>(h)].uk_absorb;
      const host::RowsView a =
          dot ? host::RowsView{reinterpret_cast<uint16_t*>(q_nope_) + h * host::EvenUp(nope),
                               heads * host::EvenUp(nope), true}
              : host::RowsView{call.Query(0, h), call.args.q.stride[0], false, tokens_};
      for (int64_t panel = 0; panel < host::NumPanels(w); ++panel) {
        host::MultiplyPanel(cpu, a, w, panel, tokens,
                            q_ + h * span_.key_dim + panel * kernels::kPanelColumns,
                            heads * span_.key_dim, nullptr, panel + 1);
      }
    }
  });

  const auto compute = [&](const Item& item, int32_t span, int worker, const State& out) {
    Carver carver = memory_.ScratchOf(worker);
    const PagedSpan::Scratch scratch = span_.Carve(carver);
    const float* q = q_ + place(item) * heads * span_.key_dim;
    for (int64_t row = 0; row < item.num_tokens * heads; ++row) {
      span_.StageQuery(cpu, q + row * span_.key_dim, span_.key_dim, 0, row, scratch);
    }
    span_.Run(cpu, call.Reader(item), item, span, scratch, out);
  };
  const auto finish = [&](const Item& item, const State& state) {
    const int64_t first = place(item) * heads;
    for (int64_t row = 0; row < item.num_tokens * heads; ++row) {
      float* o = state.o + row * rank;
      if (dot) {
        cpu.divide_row(o, state.l[row], o, rank);
        cpu.round_row(o, reinterpret_cast<uint16_t*>(o_) + (first + row) * rank, rank);
      } else {
        cpu.divide_row(o, state.l[row], reinterpret_cast<float*>(o_) + (first + row) * rank, rank);
      }
    }
  };
  ItemRunner(num_threads_, span_.max_rows, rank, memory_.states)
      .Run(runtime, items, num_items, heads, compute, finish);

  // o = W_UV o_lat.
  const int64_t out_stride = heads * shape_.v_dim;
  runtime.pool->ParallelFor(heads, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t h = begin; h < end; ++h) {
      const linear::PackedWeight& w = call.weights->heads[static_cast<size_t>(h)].uv;
      const host::RowsView a{o_ + h * rank * (dot ? 2 : 4), heads * rank, dot};
      for (int64_t panel = 0; panel < host::NumPanels(w); ++panel) {
        host::MultiplyPanel(cpu, a, w, panel, tokens,
                            out_ + h * shape_.v_dim + panel * kernels::kPanelColumns, out_stride,
                            nullptr, panel + 1);
      }
      for (int32_t i = 0; i < tokens; ++i) {
        std::memcpy(call.Out(tokens_[i], h), out_ + i * out_stride + h * shape_.v_dim,
                    static_cast<size_t>(shape_.v_dim) * sizeof(float));
      }
    }
  });
}

}  // namespace fathom::ops::attention
