#pragma once
// y = x W^T + b over weights packed for the device that runs them.
//
// Native products are batch-invariant: each output element is one chain of multiply-adds over k in
// increasing order, whatever the number of rows, the row's place or the thread count.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"

namespace fathom::ops {

// The arithmetic of a model's matrix products. Activations between ops are f32 and sums are f32 in
// both.
enum class Precision : uint8_t {
  kF32,   // f32 products; bf16 weights are widened exactly
  kBF16,  // inputs are rounded to bf16 (to nearest even), weights wider than bf16 at packing
};

// Which code multiplies many rows at once. Few rows are always native.
enum class Gemm : uint8_t {
  kNative,
  kOneDnn,  // ops/onednn.h: a second copy of the weights; not batch-invariant
};

namespace onednn {
class Weight;
}  // namespace onednn

namespace linear {

// Scales of a quantised weight: w[n][k] = q[n][k] * scales[n / block_rows][k / block_cols].
struct BlockScales {
  const float* scales = nullptr;  // [ceil(N / block_rows), ceil(K / block_cols)]
  int64_t block_rows = 128;
  int64_t block_cols = 128;
};

// One matrix [N, K] as a checkpoint stores it: f32, bf16, f16, or f8_e4m3 with scales. Rows may be
// strided (stride[0]); k is contiguous unless `transposed`, when the view is [K, N] and W is its
// transpose (absorbed weights).
struct WeightSource {
  TensorView weight;
  std::optional<BlockScales> scales;
  bool transposed = false;
};

enum class Layout : uint8_t {
  kPanels,    // panels of 32 output columns, k in pairs (docs/cpu-kernels.md)
  kRowMajor,  // [N, K] as it is: the weight is the left operand
};

// A weight in the layout its kernels read. Opaque to all but ops and kernels. Owns its bytes;
// readable at any time.
class PackedWeight {
 public:
  PackedWeight() = default;

  int64_t rows() const { return rows_; }  // N, output features
  int64_t cols() const { return cols_; }  // K, input features
  DType dtype() const { return dtype_; }  // as stored: f32, bf16
  Precision precision() const { return precision_; }
  Layout layout() const { return layout_; }
  size_t Bytes() const;  // with the copy for oneDNN
  const std::byte* data() const { return data_.get(); }
  const onednn::Weight* onednn() const { return onednn_.get(); }  // null: native products only

 private:
  friend Status AddOneDnn(PackedWeight& weight);
  friend Result<PackedWeight> Pack(std::span<const WeightSource> parts, Precision precision,
                                   Device& device, const kernels::cpu::KernelTable& cpu,
                                   Layout layout);
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::shared_ptr<const onednn::Weight> onednn_;
  size_t bytes_ = 0;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  DType dtype_ = DType::kBF16;
  Precision precision_ = Precision::kBF16;
  Layout layout_ = Layout::kPanels;
};

// The element type a weight of `stored` is kept in, and the bytes of [rows, cols]: what the memory
// plan counts before anything is loaded.
DType PackedDType(DType stored, Precision precision);
size_t PackedBytes(DType stored, int64_t rows, int64_t cols, Precision precision);

// Packs the parts one below the other: [sum of N, K], all with the same K (fused q|k|v, gate|up).
Result<PackedWeight> Pack(std::span<const WeightSource> parts, Precision precision, Device& device,
                          const kernels::cpu::KernelTable& cpu, Layout layout = Layout::kPanels);
Result<PackedWeight> Pack(const WeightSource& source, Precision precision, Device& device,
                          const kernels::cpu::KernelTable& cpu, Layout layout = Layout::kPanels);

// Adds the copy for oneDNN where onednn::Serves the shape; onednn::Check must have passed.
Status AddOneDnn(PackedWeight& weight);

// The matrix [N, K] as f32, scales applied: for weights that are cut after dequantising.
Status ToF32(const WeightSource& source, std::span<float> out);

struct Plan {
  int64_t max_rows = 0;
  size_t workspace_bytes = 0;  // what Run takes from context.arena and gives back
};

Plan MakePlan(const PackedWeight& weight, int64_t max_rows);
// Before the weight exists.
Plan MakePlan(Precision precision, int64_t rows, int64_t cols, int64_t max_rows,
              Gemm gemm = Gemm::kNative);

struct Args {
  TensorView input;                     // [max_rows, K] f32; rows may be strided
  TensorView output;                    // [max_rows, N] f32; rows may be strided
  const float* bias = nullptr;          // [N]
  const int32_t* live_rows = nullptr;   // device memory: rows to compute; null: all of input's
  const int32_t* input_rows = nullptr;  // device memory [max_rows]: row i reads input row this[i]
};

// Reads `weight` when the work runs: it must outlive the step.
Status Run(const Plan& plan, const PackedWeight& weight, const Args& args, Context& context);

}  // namespace linear
}  // namespace fathom::ops
