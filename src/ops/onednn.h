#pragma once
// Large products through oneDNN (--cpu-gemm onednn). A weight gets a second copy, packed once in
// the layout that oneDNN's matmul asks for. A product is cut into tiles; each is one
// single-threaded matmul on the one thread pool, and the rows that fill no tile stay with the
// native kernels. oneDNN orders a sum as it likes, and a row's place decides who computes it: bits
// are the same from run to run, not from batch to batch.
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "ops/host.h"
#include "ops/linear.h"

namespace fathom::ops::onednn {

inline constexpr int64_t kTileRows = 64;
inline constexpr int64_t kTileColumns = 256;

// How many of a product's rows, from the first on, oneDNN computes: whole tiles, and none of a
// product that is too small to gain.
int64_t TiledRows(int64_t rows);

// Whether weights of this shape get a copy: narrow or odd ones would not gain.
bool Serves(int64_t rows, int64_t cols);

// Whether oneDNN can take these products over, on the instruction set of these kernels: in bf16 it
// needs avx512bf16, in f32 at least avx2. It keeps to the instruction set of the first call.
Status Check(Precision precision, const kernels::cpu::KernelTable& cpu);

// Bytes of the copy of [rows, cols], 0 for shapes that get none; Check must have passed.
Result<size_t> PackedBytes(Precision precision, int64_t rows, int64_t cols);

class Weight {
 public:
  // From the panels of a weight that Serves says yes to.
  static Result<std::unique_ptr<Weight>> Make(const linear::PackedWeight& panels);
  ~Weight();

  size_t Bytes() const;
  // Rows [0, num_rows), whole tiles, of C = A W^T (+ bias). `a` is dense: [num_rows, cols], bf16 or
  // f32 by the weight's precision.
  void Multiply(const host::Runtime& runtime, const void* a, int64_t num_rows, float* c,
                int64_t c_stride, const float* bias) const;

 private:
  struct Impl;
  explicit Weight(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::ops::onednn
