#include "ops/embed.h"

#include <cstring>

#include "ops/host.h"

namespace fathom::ops::embed {

Status Run(const Args& args, const StepInputs& inputs, Context& context) {
  const int64_t hidden = args.output.shape[1];
  host::CheckMatrix(args.output, hidden, "embed output");
  const DType dtype = args.table.dtype;
  FATHOM_CHECK(args.table.rank == 2 && args.table.shape[1] == hidden && args.table.stride[1] == 1 &&
                   (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16),
               "embedding table {} [{}, {}] for hidden size {}", NameOf(dtype), args.table.shape[0],
               args.table.shape[1], hidden);
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, inputs, hidden] {
    const int64_t tokens = host::LiveRows(inputs.live_counts + kLiveTokens, args.output.shape[0]);
    host::ForRows(runtime, tokens, hidden * 6, [&](int64_t token) {
      int32_t id = inputs.token_ids[token];
      if (id < 0) id = inputs.sampled[-id - 1];
      FATHOM_CHECK(id >= 0 && id < args.table.shape[0], "token id {} of a vocabulary of {}", id,
                   args.table.shape[0]);
      float* out = host::Row(args.output, token);
      switch (args.table.dtype) {
        case DType::kF32:
          std::memcpy(out, host::Row(args.table, id), static_cast<size_t>(hidden) * sizeof(float));
          break;
        case DType::kBF16:
          runtime.cpu->widen_row(host::Row<uint16_t>(args.table, id), out, hidden);
          break;
        default:
          for (int64_t i = 0; i < hidden; ++i) {
            out[i] = F16ToF32(host::Row<uint16_t>(args.table, id)[i]);
          }
      }
    });
  });
  return {};
}

Status GatherLogitsRows(const GatherArgs& args, const StepInputs& inputs, Context& context) {
  const int64_t dim = args.output.shape[1];
  host::CheckMatrix(args.input, dim, "gather input");
  host::CheckMatrix(args.output, dim, "gather output");
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, inputs, dim] {
    const int64_t rows = host::LiveRows(inputs.live_counts + kLiveLogits, args.output.shape[0]);
    host::ForRows(runtime, rows, dim * 8, [&](int64_t row) {
      std::memcpy(host::Row(args.output, row), host::Row(args.input, inputs.logits_tokens[row]),
                  static_cast<size_t>(dim) * sizeof(float));
    });
  });
  return {};
}

}  // namespace fathom::ops::embed
