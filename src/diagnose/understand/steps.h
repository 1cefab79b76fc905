#pragma once
// Forward passes in a trace, told apart by phase. Found by what the engine marked (annotations,
// NVTX), else by what repeats (graph launches, sampling or embedding kernels); a trace in which
// nothing repeats has no steps, and rules that need them abstain.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/understand/trace_index.h"

namespace fathom::diagnose {

enum class Phase : uint8_t { kPrefill, kDecode, kMixed, kUnknown };
inline constexpr size_t kNumPhases = 4;
std::string_view PhaseName(Phase phase);

enum class StepOrigin : uint8_t { kAnnotation, kNvtx, kGraphLaunch, kRepeatedKernel };
std::string_view StepOriginName(StepOrigin origin);

// What a marker's text says.
struct MarkerText {
  bool is_step = false;
  bool is_capture = false;  // a CUDA graph being recorded: no step of serving
  Phase phase = Phase::kUnknown;
  double prompt_tokens = std::numeric_limits<double>::quiet_NaN();
  double generated_tokens = std::numeric_limits<double>::quiet_NaN();
  double batch = std::numeric_limits<double>::quiet_NaN();  // sequences
};
// Knows "decode_step_3", "prefill", "step[DECODE bs=32]", "step[EXTEND bs=15 toks=15360]",
// "decode[bs=117/128 tok=117 d=117]", vLLM's "execute_context_2(6144)_generation_3(3)" in its
// variants, "capture_32_FULL", "ProfilerStep#4".
MarkerText ParseMarker(std::string_view text);

struct Step {
  Phase phase = Phase::kUnknown;
  StepOrigin origin = StepOrigin::kAnnotation;
  SourceId source = 0;
  size_t gpu = 0;           // TraceIndex::gpus; meaningless when num_work is 0
  uint32_t marker = kNone;  // the slice that marks it, on the CPU where there is one
  TrackId thread = kNone;   // the CPU thread that ran it
  int64_t start_ns = 0;     // the marker's start
  int64_t end_ns = 0;       // its end, or that of its last GPU work when later
  double prompt_tokens = std::numeric_limits<double>::quiet_NaN();
  double generated_tokens = std::numeric_limits<double>::quiet_NaN();
  double batch = std::numeric_limits<double>::quiet_NaN();
  // Most of its kernels were replayed from a graph.
  bool graph = false;
  // Left out of statistics: the first of its bucket (warm-up, first graph replay) or disturbed by
  // the profiler's own work.
  bool warmup = false;
  uint32_t bucket = 0;
  uint32_t first_work = 0;  // [first_work, +num_work) of Steps::work
  uint32_t num_work = 0;

  int64_t wall_ns() const { return end_ns - start_ns; }
};

// Tail statements need kMinTailSteps; what repeats in every step can be said from kMinSteps.
inline constexpr size_t kMinSteps = 3;
inline constexpr size_t kMinTailSteps = 20;

// Steps that may be compared: same GPU, phase and batch.
struct Bucket {
  Phase phase = Phase::kUnknown;
  size_t gpu = 0;
  double batch = std::numeric_limits<double>::quiet_NaN();
  bool graph_expected = false;    // most of its steps run from a graph
  std::vector<uint32_t> steps;    // in time order, warm-up steps included
  std::vector<uint32_t> counted;  // without warm-up
};

struct Steps {
  std::vector<Step> all;  // in time order on each GPU
  std::vector<Bucket> buckets;
  std::vector<uint32_t> work;  // GPU work of the steps, in start order within a step
  uint32_t num_captures = 0;   // markers of graph capture that were left out

  std::span<const uint32_t> WorkOf(const Step& step) const {
    return std::span(work).subspan(step.first_work, step.num_work);
  }
  // The bucket of that phase with the most steps; nullptr when there is none.
  const Bucket* Main(Phase phase) const;
};

Steps FindSteps(const TraceIndex& index);

}  // namespace fathom::diagnose
