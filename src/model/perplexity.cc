#include "model/perplexity.h"

#include <algorithm>
#include <cmath>

namespace fathom::model {
namespace {

// -log2 softmax(logits)[token]
double Bits(std::span<const float> logits, int32_t token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  const double log_p = double{logits[static_cast<size_t>(token)]} - max - std::log(sum);
  return -log_p / std::log(2.0);
}

}  // namespace

Result<std::vector<double>> TokenBits(StepRunner& runner, int vocab_size,
                                      std::span<const int32_t> ids, int32_t rope_row,
                                      const Windows& windows, ThreadPool& pool) {
  if (windows.stride < 1 || windows.stride > windows.window || windows.chunk < 1) {
    return Err(Code::kInvalidArgument,
               "windows of {} tokens every {}: expected 1 <= stride <= window", windows.window,
               windows.stride);
  }
  const auto count = static_cast<int64_t>(ids.size());
  const auto vocab = static_cast<size_t>(vocab_size);
  std::vector<double> bits(ids.empty() ? 0 : ids.size() - 1);
  int64_t counted = 1;  // ids[1:counted] have their bits
  for (int64_t start = 0; counted < count; start += windows.stride) {
    const int64_t stop = std::min(start + windows.window, count);
    runner.Truncate(0, 0);
    for (int64_t begin = start; begin < stop; begin += windows.chunk) {
      const int64_t end = std::min(begin + windows.chunk, stop);
      const StepRunner::Piece piece{.tokens = {ids.begin() + begin, ids.begin() + end},
                                    .rope_row = rope_row};
      // Position p predicts token p + 1; what an earlier window counted needs no logits.
      const bool needed = end > counted - 1;
      FATHOM_ASSIGN_OR_RETURN(
          const std::vector<float> logits,
          runner.Step({&piece, 1}, needed ? StepRunner::Rows::kAll : StepRunner::Rows::kNone));
      const int64_t first = std::max(begin, counted - 1);
      const int64_t last = std::min(end, stop - 1);
      pool.ParallelFor(std::max<int64_t>(last - first, 0), 8, [&](int64_t a, int64_t b, int) {
        for (int64_t p = first + a; p < first + b; ++p) {
          const std::span<const float> row(logits.data() + static_cast<size_t>(p - begin) * vocab,
                                           vocab);
          bits[static_cast<size_t>(p)] = Bits(row, ids[static_cast<size_t>(p + 1)]);
        }
      });
    }
    counted = stop;
  }
  return bits;
}

}  // namespace fathom::model
