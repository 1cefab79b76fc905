#pragma once
// y = W_down (silu(W_gate x) * (W_up x)): the gated MLP of a layer (SwiGLU, Shazeer 2020).
//
// Gate and up are never whole in memory: a panel of both goes through silu and becomes the left
// operand of the second product. Bits are those of the three steps one by one.
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"
#include "ops/linear.h"

namespace fathom::ops::mlp {

struct Plan {
  int64_t max_rows = 0;
  size_t workspace_bytes = 0;  // what Run takes from context.arena and gives back
};

// Before the weights exist.
Plan MakePlan(Precision precision, int64_t hidden, int64_t intermediate, int64_t max_rows,
              Gemm gemm = Gemm::kNative);

struct Weights {
  const linear::PackedWeight* gate_up = nullptr;  // [2 * intermediate, hidden]: gate, then up
  const linear::PackedWeight* down = nullptr;     // [hidden, intermediate]
};

struct Args {
  TensorView input;                    // [max_rows, hidden] f32; rows may be strided
  TensorView output;                   // [max_rows, hidden] f32; rows may be strided
  const int32_t* live_rows = nullptr;  // device memory: rows to compute; null: all of input's
};

// Reads the weights when the work runs: they must outlive the step. With oneDNN's copies the
// products are oneDNN's, whole, and silu an op between them.
Status Run(const Plan& plan, const Weights& weights, const Args& args, Context& context);

}  // namespace fathom::ops::mlp
