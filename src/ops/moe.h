#pragma once
// Mixture of experts: gating, and the routed experts as one grouped product. How many tokens an
// expert gets is known only on the device; a token's result does not depend on who else is there.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"
#include "ops/linear.h"

namespace fathom::ops::moe {

enum class Scoring : uint8_t { kSoftmax, kSigmoid };
enum class TopkMethod : uint8_t {
  kGreedy,              // the k best scores
  kGroupLimitedGreedy,  // among the topk_group groups with the best maximum (V2)
  kNoauxTc,             // choice = score + bias; groups by the sum of their two best choices (V3)
};

struct GateSpec {
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t num_groups = 1;
  int32_t topk_group = 1;
  Scoring scoring = Scoring::kSoftmax;
  TopkMethod method = TopkMethod::kGreedy;
  bool norm_topk_prob = false;
  float routed_scaling_factor = 1;
};

// Ranges and divisibility: top_k <= experts of the kept groups, groups divide experts, ...
Status ValidateGate(const GateSpec& spec);

struct GateArgs {
  TensorView logits;                   // [num_tokens, num_experts] f32
  const float* bias = nullptr;         // [num_experts] e_score_correction_bias; kNoauxTc only
  TensorView experts;                  // [num_tokens, top_k] i32: best first, equal scores by index
  TensorView weights;                  // [num_tokens, top_k] f32
  const int32_t* live_rows = nullptr;  // device memory; null: all
};

// Weights are the unbiased scores of the chosen, divided by their sum + 1e-20 with norm_topk_prob,
// times routed_scaling_factor. Experts outside the kept groups are never chosen.
Status Gate(const GateSpec& spec, const GateArgs& args, Context& context);

struct ExpertWeights {
  linear::PackedWeight gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows
  linear::PackedWeight down;     // [hidden, intermediate]
};

struct ExpertsShape {
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  Precision precision = Precision::kBF16;
};

struct Plan {
  ExpertsShape shape;
  int64_t max_tokens = 0;
  size_t workspace_bytes = 0;
};

Plan MakePlan(const ExpertsShape& shape, int64_t max_tokens);

// Token lists by expert, in device memory.
struct Routing {
  int32_t* expert_starts = nullptr;  // [num_experts + 1]
  int32_t* slots = nullptr;  // [num_tokens * top_k]: token * top_k + rank, ordered by expert
};

struct ExpertsArgs {
  TensorView input;    // [num_tokens, hidden] f32
  TensorView experts;  // [num_tokens, top_k] i32
  TensorView weights;  // [num_tokens, top_k] f32
  TensorView output;   // [num_tokens, hidden] f32: output += the weighted experts, in rank order
  const int32_t* live_rows = nullptr;  // device memory; null: all
};

// Builds the lists on the device. They live in context.arena until the caller's scope ends.
Result<Routing> Prepare(const Plan& plan, const ExpertsArgs& args, Context& context);
// experts: [num_experts], outliving the step.
Status Run(const Plan& plan, const ExpertWeights* experts, const Routing& routing,
           const ExpertsArgs& args, Context& context);

}  // namespace fathom::ops::moe
