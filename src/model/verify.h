#pragma once
// Runs one model twice, as it is served and in float32, over the same tokens, and compares what
// every op of every layer wrote: the first that differs beyond rounding is where to look.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/decoder.h"
#include "model/step_runner.h"

namespace fathom::model {

struct VerifyOptions {
  // ||served - reference|| / ||reference|| of one token's output of one op. bf16: each product
  // rounds its inputs to 8 bits, and what a layer adds carries all that came before it.
  double tolerance = 3e-2;
  // Tokens after one that was routed to other experts see it through attention and inherit part of
  // its difference: for them the tolerance is this many times as large.
  double inherited = 4;
  // The last tokens are generated one by one, the ones before are a prompt.
  int64_t generated_tokens = 8;
};

struct VerifyOp {
  event::Op op = event::Op::kNone;
  int layer = -1;
  double worst = 0;    // relative error, over the tokens that are compared
  int64_t token = -1;  // position of the worst
  double excess = 0;   // the largest error over its tolerance: diverges when above 1
};

// The router chose other experts for a token: a near-tie that rounding decides either way, or a
// fault if what it saw had diverged. From here on the token is not compared.
struct Reroute {
  int layer = 0;
  int64_t token = 0;
};

struct VerifyReport {
  std::vector<VerifyOp> ops;  // in the order of the pass
  std::vector<Reroute> reroutes;
  std::optional<size_t> first_divergent;  // index into ops
  int64_t tokens = 0;
  int64_t compared_tokens = 0;  // to the end of the pass
};

// Both models are the same checkpoint. The setups' sequences and max_tokens are chosen here.
Result<VerifyReport> Verify(Decoder& reference, StepRunner::Setup reference_setup, Decoder& served,
                            StepRunner::Setup served_setup, std::span<const int32_t> tokens,
                            const VerifyOptions& options);

// An aligned table: an op's worst error over all layers, the reroutes, the verdict.
std::string VerifyTable(const VerifyReport& report, const VerifyOptions& options);

}  // namespace fathom::model
