#pragma once
// What the host-executed ops share: the closures that a device runs may come late, so they take
// what they need by value and read live counts when they run.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "kernels/cpu/table.h"
#include "ops/context.h"
#include "ops/step_inputs.h"

namespace fathom::ops::host {

// Outlives the context it was taken from.
struct Runtime {
  explicit Runtime(const Context& context) : pool(&context.pool), cpu(&context.cpu) {}
  ThreadPool* pool;
  const kernels::cpu::KernelTable* cpu;
};

inline int64_t LiveRows(const int32_t* live_rows, int64_t max_rows) {
  if (live_rows == nullptr) return max_rows;
  FATHOM_CHECK(*live_rows >= 0 && *live_rows <= max_rows, "{} live rows, planned for {}",
               *live_rows, max_rows);
  return *live_rows;
}

// Pieces of at least ~16 KiB of traffic, at most an even share of the threads.
inline int64_t Grain(int64_t count, int64_t bytes_each, int num_threads) {
  const int64_t enough = std::max<int64_t>(1, 16384 / std::max<int64_t>(bytes_each, 1));
  return std::max<int64_t>(1, std::min(enough, (count + num_threads - 1) / num_threads));
}

// Calls fn(row) for each row.
template <class Fn>
void ForRows(const Runtime& runtime, int64_t rows, int64_t bytes_each, const Fn& fn) {
  runtime.pool->ParallelFor(rows, Grain(rows, bytes_each, runtime.pool->num_threads()),
                            [&fn](int64_t begin, int64_t end, int /*worker*/) {
                              for (int64_t row = begin; row < end; ++row) fn(row);
                            });
}

// A [rows, cols] f32 matrix whose rows may be strided.
inline void CheckMatrix(const TensorView& view, int64_t cols, const char* what) {
  FATHOM_CHECK(view.dtype == DType::kF32 && view.rank == 2 && view.stride[1] == 1 &&
                   view.shape[1] == cols && view.stride[0] >= cols,
               "{}: expected f32 [rows, {}] with contiguous columns, found {} rank {} [{}, {}]",
               what, cols, NameOf(view.dtype), view.rank, view.shape[0], view.shape[1]);
}

// A [tokens, heads, dim] f32 tensor whose tokens and heads may be strided.
inline void CheckHeads(const TensorView& view, int64_t heads, int64_t dim, const char* what) {
  FATHOM_CHECK(view.dtype == DType::kF32 && view.rank == 3 && view.stride[2] == 1 &&
                   view.shape[1] == heads && view.shape[2] == dim,
               "{}: expected f32 [tokens, {}, {}] with contiguous elements, found {} rank {} "
               "[{}, {}, {}]",
               what, heads, dim, NameOf(view.dtype), view.rank, view.shape[0], view.shape[1],
               view.shape[2]);
}

template <class T = float>
T* Row(const TensorView& view, int64_t row) {
  return static_cast<T*>(view.data) + row * view.stride[0];
}

// The sequence that a token of the step belongs to.
inline int32_t SequenceOf(const int32_t* query_starts, int32_t num_sequences, int32_t token) {
  return static_cast<int32_t>(
      std::upper_bound(query_starts, query_starts + num_sequences + 1, token) - query_starts - 1);
}

}  // namespace fathom::ops::host
