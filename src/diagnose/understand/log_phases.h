#pragma once
// Prefill and decode as server logs tell them apart, for when there is no trace: SGLang writes a
// line for each prefill batch and for every n-th decode batch, vLLM the token rates of a window of
// some seconds. A window with both kinds of tokens is "mixed": whether one step mixed them, a log
// does not say. Other logs, and logs without such lines, give nothing.
#include <cstddef>
#include <limits>
#include <vector>

#include "diagnose/timeline.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

// Lines of one log and phase. Numbers that they do not state are NaN.
struct LogPhase {
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

  SourceId source = 0;
  Phase phase = Phase::kUnknown;  // kUnknown: windows in which no token was computed
  bool windows = false;           // the lines are windows (vLLM), not batches (SGLang)
  size_t lines = 0;
  size_t lines_of_source = 0;            // of all its phases
  double new_tokens = kAbsent;           // computed by a prefill batch, median
  double cached_tokens = kAbsent;        // found in the prefix cache by a prefill batch, median
  double prompt_tokens_per_s = kAbsent;  // mean
  double decode_tokens_per_s = kAbsent;  // mean
  double running = kAbsent;              // sequences, mean
  // Time between two tokens of a sequence: running / decode_tokens_per_s, what interrupts decoding
  // included. Median and largest.
  double token_ms = kAbsent;
  double worst_token_ms = kAbsent;
};

// By source, prefill before decode before mixed before idle.
std::vector<LogPhase> FindLogPhases(const Timeline& timeline);

}  // namespace fathom::diagnose
