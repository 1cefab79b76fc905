#include "ops/attention_host.h"

#include <limits>

#include "ops/panels.h"

namespace fathom::ops::attention {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// With fewer items than this the spans are split too.
int64_t EnoughItems(int num_threads) { return num_threads == 1 ? 0 : 2 * int64_t{num_threads}; }
// Split: a running state for each item and slots for the spans of a round. Not split: a running
// and a span state for each thread.
int64_t NumSlots(int num_threads) { return 4 * int64_t{num_threads}; }
int64_t NumStates(int num_threads) {
  return num_threads == 1 ? 2 : EnoughItems(num_threads) + NumSlots(num_threads);
}

State CarveState(Carver& carver, int64_t rows, int64_t dim) {
  State state;
  state.m = carver.Take<float>(rows);
  state.l = carver.Take<float>(rows);
  state.o = carver.Take<float>(rows * dim);
  return state;
}

size_t StateBytes(int64_t rows, int64_t dim) {
  Carver carver(nullptr);
  CarveState(carver, rows, dim);
  return carver.used();
}

}  // namespace

int64_t ListItems(const StepInputs& inputs, const Role* role, int32_t tokens_per_item,
                  int32_t num_heads, Item* items) {
  int64_t count = 0;
  const int32_t sequences = inputs.live_counts[kLiveSequences];
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    if (role != nullptr && inputs.roles[sequence] != *role) continue;
    const int32_t begin = inputs.query_starts[sequence];
    const int32_t end = inputs.query_starts[sequence + 1];
    const int32_t before = inputs.kv_lengths[sequence] - (end - begin);
    for (int32_t head = 0; head < num_heads; ++head) {
      for (int32_t token = begin; token < end; token += tokens_per_item) {
        items[count++] = {.sequence = sequence,
                          .first_token = token,
                          .num_tokens = std::min(tokens_per_item, end - token),
                          .head = head,
                          .first_keys = before + token - begin + 1};
      }
    }
  }
  return count;
}

int64_t MaxItems(const StepBucket& bucket, int32_t tokens_per_item, int32_t num_heads) {
  return (int64_t{bucket.num_tokens} / tokens_per_item + bucket.num_sequences) * num_heads;
}

ItemRunner::ItemRunner(int num_threads, int64_t max_rows, int64_t dim, std::byte* memory)
    : num_threads_(num_threads), max_rows_(max_rows), dim_(dim), memory_(memory) {}

size_t ItemRunner::Bytes(int num_threads, int64_t max_rows, int64_t dim) {
  return static_cast<size_t>(NumStates(num_threads)) * StateBytes(max_rows, dim);
}

State ItemRunner::At(int64_t index) const {
  Carver carver(memory_ + index * static_cast<int64_t>(StateBytes(max_rows_, dim_)));
  return CarveState(carver, max_rows_, dim_);
}

void ItemRunner::Reset(const State& state, int64_t rows) const {
  std::fill_n(state.m, rows, kNothing);
  std::fill_n(state.l, rows, 0.0F);
  std::fill_n(state.o, rows * dim_, 0.0F);
}

void ItemRunner::Fold(const kernels::cpu::KernelTable& cpu, const State& state, const State& span,
                      int64_t rows) const {
  for (int64_t row = 0; row < rows; ++row) {
    if (span.l[row] == 0) continue;  // the row sees none of this span
    cpu.fold_span({state.m + row, state.l + row, state.o + row * dim_, span.m[row], span.l[row],
                   span.o + row * dim_, static_cast<int32_t>(dim_)});
  }
}

void ItemRunner::Run(const host::Runtime& runtime, const Item* items, int64_t num_items,
                     int64_t rows_per_token, Compute compute, Finish finish) const {
  int32_t max_spans = 0;
  for (int64_t i = 0; i < num_items; ++i) max_spans = std::max(max_spans, items[i].num_spans());
  if (num_items >= EnoughItems(num_threads_) || max_spans <= 1) {
    runtime.pool->ParallelFor(num_items, 1, [&](int64_t begin, int64_t end, int worker) {
      const State state = At(2 * worker);
      const State fresh = At(2 * worker + 1);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t rows = items[i].num_tokens * rows_per_token;
        Reset(state, rows);
        for (int32_t span = 0; span < items[i].num_spans(); ++span) {
          compute(items[i], span, worker, fresh);
          Fold(*runtime.cpu, state, fresh, rows);
        }
        finish(items[i], state);
      }
    });
    return;
  }
  for (int64_t i = 0; i < num_items; ++i) Reset(At(i), items[i].num_tokens * rows_per_token);
  const int64_t first_slot = EnoughItems(num_threads_);
  const int64_t round = NumSlots(num_threads_) / num_items;  // spans of each item
  for (int64_t span0 = 0; span0 < max_spans; span0 += round) {
    runtime.pool->ParallelFor(num_items * round, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const Item& item = items[i / round];
        const int64_t span = span0 + i % round;
        if (span >= item.num_spans()) continue;
        compute(item, static_cast<int32_t>(span), worker, At(first_slot + i));
      }
    });
    runtime.pool->ParallelFor(num_items, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last = std::min<int64_t>(round, items[i].num_spans() - span0);
        for (int64_t s = 0; s < last; ++s) {
          Fold(*runtime.cpu, At(i), At(first_slot + i * round + s),
               items[i].num_tokens * rows_per_token);
        }
      }
    });
  }
  for (int64_t i = 0; i < num_items; ++i) finish(items[i], At(i));
}

PageReader::PageReader(const CacheView& cache, int32_t layer, const int32_t* page_table)
    : pages_(static_cast<const std::byte*>(cache.Layer(layer))),
      page_table_(page_table),
      num_pages_(cache.num_pages),
      page_tokens_(cache.format.page_tokens),
      page_bytes_(cache.format.page_bytes) {}

void PageReader::Rows(const Plane& plane, int64_t head, int64_t first, int64_t count,
                      int64_t element, const void** rows) const {
  const int64_t offset =
      plane.offset_bytes + head * plane.head_stride_bytes + element * SizeOf(plane.dtype);
  for (int64_t i = 0; i < count;) {
    const int64_t token = first + i;
    const int32_t page = page_table_[token / page_tokens_];
    FATHOM_CHECK(page >= 0 && page < num_pages_, "position {} is on page {} of {}", token, page,
                 num_pages_);
    const std::byte* at = pages_ + page * page_bytes_ + offset;
    for (int64_t t = token % page_tokens_; t < page_tokens_ && i < count; ++t, ++i) {
      rows[i] = at + t * plane.token_stride_bytes;
    }
  }
}

kernels::PackFn Operands::PackColumns(const kernels::cpu::KernelTable& cpu) const {
  if (cached_bf16) return cpu.pack_columns_bf16_bf16;
  return dot ? cpu.pack_columns_f32_bf16 : cpu.pack_columns_f32_f32;
}

kernels::PackFn Operands::PackRows(const kernels::cpu::KernelTable& cpu) const {
  if (cached_bf16) return cpu.pack_rows_bf16_bf16;
  return dot ? cpu.pack_rows_f32_bf16 : cpu.pack_rows_f32_f32;
}

int64_t Operands::PanelElements(int64_t k) const {
  return (panel == DType::kBF16 ? host::EvenUp(k) : k) * kernels::kPanelColumns;
}

void SoftmaxRows(const kernels::cpu::KernelTable& cpu, const Item& item, int32_t span,
                 int64_t first_row, int64_t rows, int64_t rows_per_token, float scale,
                 float* scores, uint16_t* p_bf16, const State& state) {
  const int32_t first_key = span * kSpanTokens;
  const int32_t keys = std::min(kSpanTokens, item.num_keys() - first_key);
  const auto padded = static_cast<int32_t>(host::EvenUp(keys));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = first_row + i;
    const auto token = static_cast<int32_t>(row / rows_per_token);
    const int32_t seen = std::clamp(item.first_keys + token - first_key, 0, keys);
    float* const s = scores + i * kSpanTokens;
    uint16_t* const p = p_bf16 != nullptr ? p_bf16 + i * kSpanTokens : nullptr;
    if (seen == 0) {
      state.m[row] = kNothing;
      state.l[row] = 0;
      if (p != nullptr) {
        std::fill_n(p, padded, uint16_t{0});
      } else {
        std::fill_n(s, padded, 0.0F);
      }
      continue;
    }
    cpu.softmax_span(
        {s, seen, padded, scale, p != nullptr ? nullptr : s, p, state.m + row, state.l + row});
  }
}

Status CheckFormat(const CacheFormat& format, PlaneKind kind, int64_t heads, int64_t dim) {
  const Plane* plane = format.Find(kind);
  if (plane == nullptr || plane->num_heads != heads || plane->dim != dim) {
    return Err(Code::kInvalidArgument,
               "attention over a cache without a plane of {} heads x {} elements", heads, dim);
  }
  if (plane->dtype != DType::kBF16 && plane->dtype != DType::kF32) {
    return Err(Code::kUnsupported, "attention over a {} cache: the CPU reads BF16 and F32",
               NameOf(plane->dtype));
  }
  return {};
}

}  // namespace fathom::ops::attention
