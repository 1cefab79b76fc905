#pragma once
// Span attention on the host: what GQA and the two MLA paths share.
//
// An item is a block of query rows that see the same keys: some consecutive tokens of one sequence
// with all the heads that share their keys. Keys are taken span by span; each span gives a fresh
// state, which is folded into the item's running state in order.
#include <cstddef>
#include <cstdint>

#include "base/function_ref.h"
#include "ops/attention.h"
#include "ops/host.h"

namespace fathom::ops::attention {

// Cuts one block of memory into aligned pieces; over null it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* Take(int64_t count) {
    T* piece = base_ != nullptr ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += Arena::Align(static_cast<size_t>(count) * sizeof(T));
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

struct Item {
  int32_t sequence = 0;
  int32_t first_token = 0;  // of the step
  int32_t num_tokens = 0;
  int32_t head = 0;
  int32_t first_keys = 0;  // keys that the first token sees; each next token sees one more

  int32_t num_keys() const { return first_keys + num_tokens - 1; }  // that the last token sees
  int32_t num_spans() const { return (num_keys() + kSpanTokens - 1) / kSpanTokens; }
};

// Items of the step's sequences that have `role` (null: any), in order: each sequence's tokens in
// blocks of at most tokens_per_item, for each of num_heads heads. `items` holds MaxItems.
int64_t ListItems(const StepInputs& inputs, const Role* role, int32_t tokens_per_item,
                  int32_t num_heads, Item* items);
int64_t MaxItems(const StepBucket& bucket, int32_t tokens_per_item, int32_t num_heads);

// Softmax state of an item's rows: o is not divided by l yet.
struct State {
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
  float* o = nullptr;  // [rows, dim]
};

// Runs items: compute(item, span, worker, out) gives a span's fresh state; finish(item, state)
// takes the folded one. With enough items each runs alone from its first span to its last; with
// few, spans run side by side in rounds and are folded in order. A row sees the same fold.
class ItemRunner {
 public:
  ItemRunner(int num_threads, int64_t max_rows, int64_t dim, std::byte* memory);
  static size_t Bytes(int num_threads, int64_t max_rows, int64_t dim);

  using Compute = FunctionRef<void(const Item&, int32_t span, int worker, const State& out)>;
  using Finish = FunctionRef<void(const Item&, const State&)>;
  void Run(const host::Runtime& runtime, const Item* items, int64_t num_items,
           int64_t rows_per_token, Compute compute, Finish finish) const;

 private:
  State At(int64_t index) const;
  void Reset(const State& state, int64_t rows) const;
  void Fold(const kernels::cpu::KernelTable& cpu, const State& state, const State& span,
            int64_t rows) const;

  int num_threads_;
  int64_t max_rows_;
  int64_t dim_;
  std::byte* memory_;
};

// What a call over items keeps in its workspace: the items, the runner's states and each worker's
// scratch memory, whose pieces carve(Carver&) takes.
struct ItemMemory {
  template <class Carve>
  ItemMemory(Carver& carver, int64_t max_items, int num_threads, int64_t max_rows, int64_t dim,
             const Carve& carve)
      : items(carver.Take<Item>(max_items)),
        states(carver.Take<std::byte>(
            static_cast<int64_t>(ItemRunner::Bytes(num_threads, max_rows, dim)))) {
    Carver one(nullptr);
    carve(one);
    scratch_bytes = static_cast<int64_t>(one.used());
    scratch = carver.Take<std::byte>(scratch_bytes * num_threads);
  }
  ItemMemory() = default;
  Carver ScratchOf(int worker) const { return Carver(scratch + scratch_bytes * worker); }

  Item* items = nullptr;
  std::byte* states = nullptr;
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
};

// Where one layer's keys and values of one sequence lie.
class PageReader {
 public:
  PageReader(const CacheView& cache, int32_t layer, const int32_t* page_table);
  // Pointers to a head's elements, from `element` on, of `count` tokens from position `first` on.
  void Rows(const Plane& plane, int64_t head, int64_t first, int64_t count, int64_t element,
            const void** rows) const;

 private:
  const std::byte* pages_;  // of the layer
  const int32_t* page_table_;
  int64_t num_pages_;
  int64_t page_tokens_;
  int64_t page_bytes_;
};

// How a span's operands are typed: bf16 products round q and the probabilities; f32 products keep
// them and widen cached bf16.
struct Operands {
  Operands(Precision precision, DType cached)
      : dot(precision == Precision::kBF16),
        cached_bf16(cached == DType::kBF16),
        panel(dot || cached_bf16 ? DType::kBF16 : DType::kF32) {}
  bool dot;          // bf16 rows and panels
  bool cached_bf16;  // the pages' type
  DType panel;       // of panels packed from pages

  kernels::PackFn PackColumns(const kernels::cpu::KernelTable& cpu) const;
  kernels::PackFn PackRows(const kernels::cpu::KernelTable& cpu) const;
  int64_t PanelElements(int64_t k) const;
};

// Scores to probabilities for `rows` rows of 256, row r belonging to token r / rows_per_token of
// the item. Writes state.m and state.l, and p as bf16 (operands.dot) or f32 (in place).
void SoftmaxRows(const kernels::cpu::KernelTable& cpu, const Item& item, int32_t span,
                 int64_t first_row, int64_t rows, int64_t rows_per_token, float scale,
                 float* scores, uint16_t* p_bf16, const State& state);

Status CheckFormat(const CacheFormat& format, PlaneKind kind, int64_t heads, int64_t dim);

}  // namespace fathom::ops::attention
