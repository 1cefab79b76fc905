#pragma once
// A request's sampling parameters on their way to ops/sample.h: checked once, then one row a step.
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "ops/sample.h"

namespace fathom::engine {

// Ranges, ids below vocab_size, no id twice. The error names the field.
Status ValidateSampling(const SamplingParams& params, int32_t vocab_size);

class Sampler {
 public:
  Sampler() = default;
  // `max_total`: prompt and answer, to reserve for.
  Sampler(const RequestSpec& spec, uint64_t default_seed, int32_t vocab_size, int32_t max_total);

  // Penalties look at the tokens so far; constraints at the token before.
  bool needs_tokens_on_host() const { return penalises_ || constraint_ != nullptr; }
  void Commit(int32_t token);  // the answer's next token

  // Everything of the row but its ranges, slot and mask.
  ops::sample::Row RowFor(uint64_t index) const;
  std::span<const ops::sample::Occurrence> occurrences() const { return occurrences_; }
  std::span<const ops::sample::Bias> biases() const { return biases_; }
  TokenConstraint* constraint() const { return constraint_; }
  // The most that occurrences() may come to hold.
  size_t max_occurrences() const { return penalises_ ? occurrences_.capacity() : 0; }

 private:
  ops::sample::Occurrence& OccurrenceOf(int32_t token);

  ops::sample::Row row_;
  bool penalises_ = false;
  std::vector<ops::sample::Occurrence> occurrences_;  // by token
  std::vector<ops::sample::Bias> biases_;
  TokenConstraint* constraint_ = nullptr;
};

}  // namespace fathom::engine
