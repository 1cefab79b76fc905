#pragma once
// Prefill and decode as servers tell them apart, for when there is no trace. By logs: SGLang writes
// a line for each prefill batch and for every n-th decode batch, vLLM the token rates of a window
// of some seconds, or each step (--enable-logging-iteration-details). By scrapes: vLLM's token
// counters between one scrape and the next, Fathom's steps of each phase. A window with both kinds
// of tokens is "mixed": whether one step mixed them is not in it. What states none of this gives
// nothing.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "diagnose/timeline.h"
#include "diagnose/understand/steps.h"

namespace fathom::diagnose {

enum class PhaseUnit : uint8_t {
  kBatches,  // lines about a batch
  kWindows,  // stretches of time
  kSteps,    // counted steps
};

// What one source says of a phase. Numbers that it does not state are NaN.
struct ServerPhase {
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

  SourceId source = 0;
  Phase phase = Phase::kUnknown;  // kUnknown: windows in which no token was computed
  PhaseUnit unit = PhaseUnit::kBatches;
  bool scraped = false;  // by metrics, not by a log
  size_t count = 0;
  size_t count_of_source = 0;            // of all its phases
  double new_tokens = kAbsent;           // computed by a prefill batch, median
  double cached_tokens = kAbsent;        // found in the prefix cache by a prefill batch, median
  double prompt_tokens_per_s = kAbsent;  // mean
  double decode_tokens_per_s = kAbsent;  // mean
  double running = kAbsent;              // sequences, mean
  double step_ms = kAbsent;              // of kSteps, mean
  // Time between two tokens of a sequence: running / decode_tokens_per_s, what interrupts decoding
  // included. Median and largest.
  double token_ms = kAbsent;
  double worst_token_ms = kAbsent;
};

// By source, prefill before decode before mixed before idle.
std::vector<ServerPhase> FindServerPhases(const Timeline& timeline);

}  // namespace fathom::diagnose
