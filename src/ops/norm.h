#pragma once
// Row-wise ops between matrix products.
#include <cstdint>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"

namespace fathom::ops::norm {

struct RmsArgs {
  TensorView input;               // [num_rows, dim] f32; rows may be strided
  TensorView residual;            // [num_rows, dim] f32 or empty: input += residual first
  TensorView output;              // [num_rows, dim] f32; may be the input
  const float* weight = nullptr;  // [dim]
  float eps = 1e-6F;
  const int32_t* live_rows = nullptr;  // device memory; null: all
};

// output = input / sqrt(mean(input^2) + eps) * weight (Zhang and Sennrich, 2019). With a residual,
// `input` itself becomes input + residual: the fused residual connection of a pre-norm layer.
Status RmsNorm(const RmsArgs& args, Context& context);

struct AddArgs {
  TensorView target;  // [num_rows, dim] f32, target += addend
  TensorView addend;  // [num_rows, dim] f32
  const int32_t* live_rows = nullptr;
};

Status Add(const AddArgs& args, Context& context);

struct SiluMulArgs {
  TensorView gate_up;  // [num_rows, 2 * dim] f32: gate columns, then up columns
  TensorView output;   // [num_rows, dim] f32
  const int32_t* live_rows = nullptr;
};

// output = gate * sigmoid(gate) * up (SwiGLU, Shazeer 2020).
Status SiluMul(const SiluMulArgs& args, Context& context);

}  // namespace fathom::ops::norm
