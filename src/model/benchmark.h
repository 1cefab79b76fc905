#pragma once
// What a model's steps take and move: prefill and decode at given lengths and batches, measured
// without engine or server, each op beside what it costs at least (cost/op_cost.h).
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "event/event.h"
#include "model/step_runner.h"

namespace fathom::model {

struct BenchmarkOptions {
  // Of the prefill, and what every decoding sequence holds before.
  std::vector<int64_t> prompt_tokens = {512};
  int64_t chunk_tokens = 512;  // of one prefill step
  int64_t decode_steps = 32;   // timed, one token a sequence each; 0: no decode rows
  std::vector<int> batches = {1};
  int repeats = 3;    // prefills, the median counts; 0: no prefill rows
  uint64_t seed = 1;  // of the random token ids
};

struct OpTotals {
  double seconds = 0;
  double bytes = 0;
  double flops = 0;
};

struct BenchmarkRow {
  ops::Role role = ops::Role::kPrompt;
  int batch = 1;
  int64_t context_tokens = 0;  // at the end
  int64_t tokens = 0;          // of one measured unit: a prefill, or a decode step
  double seconds = 0;          // of that unit, the median
  double slowest_seconds = 0;
  // What memory gave to plain reads meanwhile: the median of passes between units, since other
  // tenants of a machine move it from second to second.
  double read_bytes_per_s = 0;
  OpTotals total;  // of one unit, on average
  std::array<OpTotals, static_cast<size_t>(event::Op::kCount)> ops = {};

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

// `setup` says where; its sequences, max_tokens and sink are chosen here. For each prompt length a
// prefill row, then a decode row a batch. Warms up before it measures.
Result<std::vector<BenchmarkRow>> RunBenchmark(Model& model, const StepRunner::Setup& setup,
                                               const BenchmarkOptions& options);

// What the event stream costs a decode step: steps of one sequence with and without events by
// turns, so that both see the same state of the machine.
struct EventCost {
  int64_t pairs = 0;
  double events_per_step = 0;
  double off_seconds = 0;  // medians
  double on_seconds = 0;
  double percent = 0;  // 100 (on / off - 1), the median over pairs of neighbours
};
// Uses the first prompt length; decode_steps pairs.
Result<EventCost> MeasureEventCost(Model& model, const StepRunner::Setup& setup,
                                   const BenchmarkOptions& options);

// Logits [1 + ids after the prompt, vocab_size] of the last of `prompt_tokens` ids, taken as a
// prompt, and of each id after it, taken as generated.
Result<std::vector<float>> LogitsOf(Model& model, StepRunner::Setup setup,
                                    std::span<const int32_t> ids, int64_t prompt_tokens,
                                    int64_t chunk_tokens);

}  // namespace fathom::model
