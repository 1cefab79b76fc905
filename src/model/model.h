#pragma once
// What the engine sees of a model: its cache layout, a plan for a step's shape, and a forward pass
// over StepInputs. A forward pass is written once in terms of ops; the device decides the kernels.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/cache_format.h"
#include "ops/context.h"
#include "ops/step_inputs.h"

namespace fathom::model {

// A step's scratch: what Forward allocates from context.arena, at most.
struct StepPlan {
  ops::StepBucket bucket;
  size_t workspace_bytes = 0;
};

// How a sequence's RoPE is fixed at admission. Dynamic NTK needs the length that the sequence may
// reach; every other scaling has one table (row 0).
struct RopeChoice {
  int32_t row = 0;   // StepInputs::rope_rows
  uint64_t key = 0;  // part of the prefix-cache key
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::string_view name() const = 0;
  virtual int vocab_size() const = 0;
  virtual int max_context_tokens() const = 0;  // after RoPE scaling and overrides
  // Identifies the weights and everything that changes logits: part of the prefix-cache key.
  virtual uint64_t fingerprint() const = 0;

  // One format a layer group; page tables and CacheViews come in this order.
  virtual std::span<const ops::CacheFormat> cache_formats() const = 0;

  // The table for a sequence that will hold at most max_tokens. Not while a step runs.
  virtual Result<RopeChoice> ChooseRope(int64_t max_tokens) = 0;

  // Pure. The plan of a larger bucket serves a smaller step.
  virtual StepPlan Plan(const ops::StepBucket& bucket) const = 0;

  // Enqueues one step: writes this step's keys and values into the pages, and
  // logits [bucket.num_logits, vocab_size] f32 for StepInputs::logits_tokens.
  // No host read of device data, no allocation besides context.arena.
  virtual Status Forward(const StepPlan& plan, const ops::StepInputs& inputs,
                         std::span<const ops::CacheView> caches, ops::Context& context,
                         TensorView logits) = 0;
};

}  // namespace fathom::model
