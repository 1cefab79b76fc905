#pragma once
// Points of a roofline: calls whose operands the trace recorded, with the work they must do.
#include <optional>
#include <string>
#include <vector>

#include "cost/hardware.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

struct RooflinePoint {
  std::string name;  // "attention 1 x 4100 keys", "gemm 4096 x 4096 x 1"
  Phase phase = Phase::kUnknown;
  KernelClass kind = KernelClass::kGemm;
  uint32_t slice = kNone;  // its longest kernel
  uint32_t count = 0;      // calls of equal shape that it stands for
  cost::Cost cost;         // of one call: each operand read once, the result written once
  double seconds = 0;      // of one call, mean
};

struct Roofline {
  std::optional<cost::Hardware> hardware;  // nullopt: the GPU's peaks are not known
  std::vector<RooflinePoint> points;       // of each phase's median step, longest in sum first
};

// Attention calls (understand/attention_calls.h) and matrix products (aten::mm, addmm, bmm).
Roofline MakeRoofline(const TraceIndex& index, const Steps& steps);

}  // namespace fathom::diagnose
