#include "ops/mlp.h"

#include "base/arena.h"
#include "ops/host.h"
#include "ops/norm.h"
#include "ops/panels.h"

namespace fathom::ops::mlp {
namespace {

size_t F32Bytes(int64_t rows, int64_t cols) {
  return Arena::Align(static_cast<size_t>(rows * cols) * sizeof(float));
}

// Left operands lie as in linear.h: rounded rows, or f32 as they are.
size_t StagedBytes(Precision precision, int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * host::StagedStride(cols)) *
         (precision == Precision::kBF16 ? sizeof(uint16_t) : sizeof(float));
}

// Where up begins inside a panel, a panel of gate needs two of up: then gate and up are one
// product.
bool Fuses(int64_t intermediate) { return intermediate % kernels::kPanelColumns == 0; }

Status RunWhole(const Weights& weights, const Args& args, Context& context) {
  const int64_t rows = args.output.shape[0];
  const int64_t intermediate = weights.down->cols();
  const TensorView gate_up = context.arena.Tensor(DType::kF32, {rows, 2 * intermediate});
  const TensorView product = context.arena.Tensor(DType::kF32, {rows, intermediate});
  FATHOM_TRY(linear::Run(linear::MakePlan(*weights.gate_up, rows), *weights.gate_up,
                         {.input = args.input, .output = gate_up, .live_rows = args.live_rows},
                         context));
  FATHOM_TRY(
      norm::SiluMul({.gate_up = gate_up, .output = product, .live_rows = args.live_rows}, context));
  return linear::Run(linear::MakePlan(*weights.down, rows), *weights.down,
                     {.input = product, .output = args.output, .live_rows = args.live_rows},
                     context);
}

}  // namespace

Plan MakePlan(Precision precision, int64_t hidden, int64_t intermediate, int64_t max_rows,
              Gemm gemm) {
  size_t bytes = Arena::Align(StagedBytes(precision, max_rows, intermediate)) +
                 Arena::Align(StagedBytes(precision, max_rows, hidden));
  if (gemm == Gemm::kOneDnn || !Fuses(intermediate)) {
    const auto linear = [&](int64_t rows, int64_t cols) {
      return linear::MakePlan(precision, rows, cols, max_rows, gemm).workspace_bytes;
    };
    bytes = std::max(bytes,
                     F32Bytes(max_rows, 2 * intermediate) + F32Bytes(max_rows, intermediate) +
                         std::max(linear(2 * intermediate, hidden), linear(hidden, intermediate)));
  }
  return {max_rows, bytes + Arena::kAlignment};
}

Status Run(const Plan& plan, const Weights& weights, const Args& args, Context& context) {
  const linear::PackedWeight& gate_up = *weights.gate_up;
  const linear::PackedWeight& down = *weights.down;
  host::CheckMatrix(args.input, gate_up.cols(), "mlp input");
  host::CheckMatrix(args.output, down.rows(), "mlp output");
  FATHOM_CHECK(gate_up.rows() == 2 * down.cols() && gate_up.precision() == down.precision(),
               "gate and up have {} rows, down has {} columns", gate_up.rows(), down.cols());
  FATHOM_CHECK(args.output.shape[0] <= plan.max_rows, "mlp of {} rows, planned for {}",
               args.output.shape[0], plan.max_rows);
  const ArenaScope scope(context.arena);
  if (gate_up.onednn() != nullptr || down.onednn() != nullptr || !Fuses(down.cols())) {
    return RunWhole(weights, args, context);
  }
  const int64_t max_rows = args.output.shape[0];
  const Precision precision = gate_up.precision();
  const bool bf16 = precision == Precision::kBF16;
  void* const act = context.arena.Allocate(StagedBytes(precision, max_rows, down.cols()));
  void* const staged =
      bf16 ? context.arena.Allocate(StagedBytes(precision, max_rows, gate_up.cols())) : nullptr;
  context.device.Execute(
      context.stream, [runtime = host::Runtime(context), weights, args, bf16, act, staged] {
        const int64_t hidden = weights.gate_up->cols();
        const int64_t intermediate = weights.down->cols();
        const int64_t rows = host::LiveRows(args.live_rows, args.output.shape[0]);
        host::RowsView input{args.input.data, args.input.stride[0], false};
        if (bf16) {
          input = {staged, host::StagedStride(hidden), true};
          host::ForRows(runtime, rows, hidden * 6, [&](int64_t row) {
            runtime.cpu->round_row(host::Row(args.input, row),
                                   static_cast<uint16_t*>(staged) + row * input.stride, hidden);
          });
        }
        const int64_t stride = host::StagedStride(intermediate);
        host::MultiplyGated(runtime, input, *weights.gate_up, rows, {act, stride, bf16});
        host::Multiply(runtime, {act, stride, bf16}, *weights.down, rows, args.output.As<float>(),
                       args.output.stride[0], nullptr);
      });
  return {};
}

}  // namespace fathom::ops::mlp
