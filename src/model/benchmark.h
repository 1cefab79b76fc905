#pragma once
// What a model's steps take and move: prefill and decode at given lengths and batches, measured
// without engine or server, each op beside what it costs at least (cost/op_cost.h).
#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "event/event.h"
#include "model/step_runner.h"

namespace fathom::model {

struct BenchmarkOptions {
  int64_t prompt_tokens = 512;  // of the prefill, and what every decoding sequence holds before
  int64_t chunk_tokens = 512;   // of one prefill step
  int64_t decode_steps = 32;    // timed, one token a sequence each
  std::vector<int> batches = {1};
  int repeats = 3;    // prefills; the median counts
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
  OpTotals total;  // of one unit, on average
  std::array<OpTotals, static_cast<size_t>(event::Op::kCount)> ops = {};

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

// `setup` says where; its sequences, max_tokens and sink are chosen here. One prefill row, then a
// decode row a batch. Warms up before it measures.
Result<std::vector<BenchmarkRow>> RunBenchmark(Model& model, StepRunner::Setup setup,
                                               const BenchmarkOptions& options);

}  // namespace fathom::model
