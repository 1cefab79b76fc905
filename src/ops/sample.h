#pragma once
// Chooses the next token of each row of logits. Passes over the vocabulary only, no sort: every
// filter (min_p, top_k, top_p) keeps a prefix of the tokens ordered by probability, ties by lower
// id, and a radix selection over the bits of the probabilities finds where the shortest prefix
// ends.
//
// Order of what happens to a row x [vocab]:
//   1. log-probabilities of the model's own distribution, when asked for;
//   2. repetition penalty r on tokens of prompt or answer: x / r where x > 0, else x * r;
//      frequency penalty * count and presence penalty on tokens of the answer; logit bias; mask;
//   3. temperature 0: the largest, ties to the lowest id; else p = softmax(x / temperature);
//   4. min_p: p >= min_p * max p; then the top_k most likely; then the fewest most likely of these
//      whose probabilities, renormalised, reach top_p;
//   5. one draw. Its random number depends on (seed, index) alone: Philox4x32-10 (Salmon et al.,
//      "Parallel random numbers: as easy as 1, 2, 3", SC11), so neither batch nor schedule matter.
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "base/tensor_view.h"
#include "ops/context.h"

namespace fathom::ops::sample {

inline constexpr int32_t kMaxTopLogprobs = 20;

// A token that occurred before, in the prompt or in the answer.
struct Occurrence {
  int32_t token = 0;
  int32_t generated = 0;  // how often in the answer
};

struct Bias {
  int32_t token = 0;
  float value = 0;
};

// How to sample one row. Ranges are [begin, end) of the arrays in Args.
struct Row {
  uint64_t seed = 0;
  uint64_t index = 0;  // of the token in its answer
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  // 0: off
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  int32_t top_logprobs = -1;  // -1: none; else the chosen token's and this many most likely
  int32_t slot = 0;           // of `sampled`
  int32_t mask_row = -1;      // of `masks`
  int32_t occurrences_begin = 0;
  int32_t occurrences_end = 0;
  int32_t biases_begin = 0;
  int32_t biases_end = 0;
};

struct Choice {
  static constexpr int32_t kNotFinite = -1;  // logits hold NaN or infinity
  static constexpr int32_t kAllMasked = -2;

  int32_t token = 0;  // or one of the above
  float logprob = 0;
  int32_t num_top = 0;
  std::array<int32_t, kMaxTopLogprobs> top_tokens = {};
  std::array<float, kMaxTopLogprobs> top_logprobs = {};
};

// Device memory, but for the views themselves.
struct Args {
  TensorView logits;  // [max_rows, vocab] f32
  const Row* rows = nullptr;
  const Occurrence* occurrences = nullptr;
  const Bias* biases = nullptr;
  const uint64_t* masks = nullptr;    // [, ceil(vocab / 64)] bits of illegal tokens
  const int32_t* num_rows = nullptr;  // [1] live rows
  int32_t* sampled = nullptr;         // [slots] gets the token; 0 for a failed choice
  Choice* choices = nullptr;          // [max_rows]
};

// Scratch in context.arena.
size_t WorkspaceBytes(int64_t vocab, int num_threads);

Status Run(const Args& args, Context& context);

// The uniform random number in [0, 1) of one draw.
double Uniform(uint64_t seed, uint64_t index);
// The generator itself, for its known answers.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace fathom::ops::sample
