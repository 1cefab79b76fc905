#pragma once
#include <cstdint>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"
#include "ops/step_inputs.h"

namespace fathom::ops::embed {

struct Args {
  TensorView table;   // [vocab, hidden] f32, f16 or bf16; readable when the work runs
  TensorView output;  // [bucket.num_tokens, hidden] f32
};

// output[i] = table[id], id = token_ids[i], or sampled[-token_ids[i] - 1] where that is negative.
Status Run(const Args& args, const StepInputs& inputs, Context& context);

struct GatherArgs {
  TensorView input;   // [bucket.num_tokens, dim] f32
  TensorView output;  // [bucket.num_logits, dim] f32
};

// output[i] = input[logits_tokens[i]]: the rows that go to the head.
Status GatherLogitsRows(const GatherArgs& args, const StepInputs& inputs, Context& context);

}  // namespace fathom::ops::embed
