#pragma once
// How well a model predicts a text.
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/step_runner.h"

namespace fathom::model {

struct Windows {
  int64_t window = 8192;  // tokens
  int64_t stride = 4096;  // <= window
  int64_t chunk = 256;    // tokens of one step
};

// -log2 p of ids[first:], each given everything before it in ids; 1 <= first <= ids. The runner has
// one sequence of at least as many tokens; rope_row as ChooseRope(ids) says; pool: for the softmax.
Result<std::vector<double>> WindowBits(StepRunner& runner, int vocab_size,
                                       std::span<const int32_t> ids, int64_t first,
                                       int32_t rope_row, int64_t chunk, ThreadPool& pool);

// -log2 p of ids[1:], each given everything before it within its window. The first window begins
// at ids[0], each next one `stride` tokens later and counts only the tokens that no earlier window
// counted. Runner, rope_row and pool as above.
Result<std::vector<double>> TokenBits(StepRunner& runner, int vocab_size,
                                      std::span<const int32_t> ids, int32_t rope_row,
                                      const Windows& windows, ThreadPool& pool);

}  // namespace fathom::model
