#pragma once
// Attention calls whose shapes the trace recorded, with the work they must do at least: the point
// that a roofline plots.
#include <cstdint>
#include <optional>
#include <vector>

#include "cost/hardware.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

struct AttentionCall {
  uint32_t op = kNone;      // the operator
  uint32_t kernel = kNone;  // its longest kernel
  int64_t busy_ns = 0;      // union of its kernels
  double batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, dim = 0, dim_v = 0;
  bool causal = false;  // assumed where queries > 1: the triangle is not computed
  cost::Cost cost;      // FLOPs of unmasked pairs; each input read once, the output written once
  // Share of the binding roof of `hardware` that the measured time reaches.
  double RoofShare(const cost::Hardware& hardware) const;
  bool MemoryBound(const cost::Hardware& hardware) const;
};

// The calls among a step's work that go through one fused operator with 4-dimensional shapes
// ([batch, heads, tokens, dim], as scaled_dot_product_attention takes them).
std::vector<AttentionCall> FindAttentionCalls(const TraceIndex& index, const Steps& steps,
                                              const Step& step);

// The GPU that ran a step, by the trace's device list; nullopt when it is not known to cost/.
std::optional<cost::Hardware> HardwareOf(const Timeline& timeline, const TraceIndex& index,
                                         const Step& step);

}  // namespace fathom::diagnose
