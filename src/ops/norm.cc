#include "ops/norm.h"

#include "ops/host.h"

namespace fathom::ops::norm {

Status RmsNorm(const RmsArgs& args, Context& context) {
  const int64_t dim = args.input.shape[1];
  host::CheckMatrix(args.input, dim, "norm input");
  host::CheckMatrix(args.output, dim, "norm output");
  if (args.residual.data != nullptr) host::CheckMatrix(args.residual, dim, "norm residual");
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, dim] {
    const int64_t rows = host::LiveRows(args.live_rows, args.output.shape[0]);
    host::ForRows(runtime, rows, dim * 12, [&](int64_t row) {
      runtime.cpu->rms_norm(
          {host::Row(args.input, row),
           args.residual.data != nullptr ? host::Row(args.residual, row) : nullptr, args.weight,
           host::Row(args.output, row), dim, args.eps});
    });
  });
  return {};
}

Status Add(const AddArgs& args, Context& context) {
  const int64_t dim = args.target.shape[1];
  host::CheckMatrix(args.target, dim, "add target");
  host::CheckMatrix(args.addend, dim, "add addend");
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, dim] {
    const int64_t rows = host::LiveRows(args.live_rows, args.target.shape[0]);
    host::ForRows(runtime, rows, dim * 12, [&](int64_t row) {
      runtime.cpu->add_row(host::Row(args.target, row), host::Row(args.addend, row), dim);
    });
  });
  return {};
}

Status SiluMul(const SiluMulArgs& args, Context& context) {
  const int64_t dim = args.output.shape[1];
  host::CheckMatrix(args.gate_up, 2 * dim, "silu_mul gate|up");
  host::CheckMatrix(args.output, dim, "silu_mul output");
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, dim] {
    const int64_t rows = host::LiveRows(args.live_rows, args.output.shape[0]);
    host::ForRows(runtime, rows, dim * 12, [&](int64_t row) {
      kernels::SiluMulParams p;
      p.gate = host::Row(args.gate_up, row);
      p.up = p.gate + dim;
      p.output_f32 = host::Row(args.output, row);
      p.rows = 1;
      p.dim = dim;
      runtime.cpu->silu_mul(p);
    });
  });
  return {};
}

}  // namespace fathom::ops::norm
