#pragma once
// One span of attention straight over pages: GQA of both roles, and MLA's generated tokens, whose
// keys are the latents with the shared rope keys behind them and whose values are the latents.
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/attention_host.h"

namespace fathom::ops::attention {

// Where the keys and values of one span lie, row by row.
struct SpanRows {
  std::array<std::array<const void*, kSpanTokens>, 2> keys;  // of each key plane
  std::array<const void*, kSpanTokens> values;
  int32_t count = 0;
};

struct PagedSpan {
  std::array<Plane, 2> key_planes;  // their elements follow each other
  int32_t num_key_planes = 1;
  Plane values;
  bool values_are_keys = false;  // values are the first key plane
  Operands operands;
  float scale = 1;
  int64_t rows_per_token = 1;
  int64_t max_rows = 1;
  int64_t key_dim = 0;
  int64_t value_dim = 0;

  // Of one worker.
  struct Scratch {
    std::byte* q = nullptr;      // [rows, EvenUp(key_dim)] bf16 or f32: staged by the caller
    float* scores = nullptr;     // [rows, 256]
    uint16_t* p = nullptr;       // [rows, 256], bf16 products only
    std::byte* panel = nullptr;  // 32 keys, or the span's values
  };
  Scratch Carve(Carver& carver) const;
  int64_t q_stride() const;

  // Puts one query row of `dim` elements at `element` of staged row `row`.
  void StageQuery(const kernels::cpu::KernelTable& cpu, const float* q, int64_t dim,
                  int64_t element, int64_t row, const Scratch& scratch) const;
  // Adds `count` consecutive tokens of a kv head from position `first` on.
  void Gather(const PageReader& reader, int64_t head, int64_t first, int32_t count,
              SpanRows& rows) const;
  // All keys of the span up to each query's own.
  void Run(const kernels::cpu::KernelTable& cpu, const PageReader& reader, const Item& item,
           int32_t span, const Scratch& scratch, const State& out) const;
  // `num_rows` staged queries against the given keys. `softmax` turns scratch.scores into
  // probabilities and writes out.m and out.l.
  void Attend(const kernels::cpu::KernelTable& cpu, const SpanRows& rows, int32_t num_rows,
              const Scratch& scratch, FunctionRef<void()> softmax, const State& out) const;
};

}  // namespace fathom::ops::attention
