#include "model/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

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

Result<std::vector<double>> WindowBits(StepRunner& runner, int vocab_size,
                                       std::span<const int32_t> ids, int64_t first,
                                       int32_t rope_row, int64_t chunk, ThreadPool& pool) {
  const auto count = static_cast<int64_t>(ids.size());
  FATHOM_CHECK(first >= 1 && first <= count && chunk >= 1);
  const auto vocab = static_cast<size_t>(vocab_size);
  std::vector<double> bits(static_cast<size_t>(count - first));
  runner.Truncate(0, 0);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(begin + chunk, count);
    const StepRunner::Piece piece{.tokens = {ids.begin() + begin, ids.begin() + end},
                                  .rope_row = rope_row};
    // Position p predicts token p + 1.
    const bool needed = end > first - 1;
    FATHOM_ASSIGN_OR_RETURN(
        const std::vector<float> logits,
        runner.Step({&piece, 1}, needed ? StepRunner::Rows::kAll : StepRunner::Rows::kNone));
    const int64_t from = std::max(begin, first - 1);
    const int64_t to = std::min(end, count - 1);
    pool.ParallelFor(std::max<int64_t>(to - from, 0), 8, [&](int64_t a, int64_t b, int) {
      for (int64_t p = from + a; p < from + b; ++p) {
        const std::span<const float> row(logits.data() + static_cast<size_t>(p - begin) * vocab,
                                         vocab);
        bits[static_cast<size_t>(p + 1 - first)] = Bits(row, ids[static_cast<size_t>(p + 1)]);
      }
    });
  }
  return bits;
}

Result<std::vector<double>> TokenBits(StepRunner& runner, int vocab_size,
                                      std::span<const int32_t> ids, int32_t rope_row,
                                      const Windows& windows, ThreadPool& pool) {
  if (windows.stride < 1 || windows.stride >= windows.window || windows.chunk < 1) {
    return Err(Code::kInvalidArgument,
               "windows of {} tokens every {}: expected 1 <= stride < window", windows.window,
               windows.stride);
  }
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<double> bits;
  int64_t counted = 1;  // ids[1:counted] have their bits
  for (int64_t start = 0; counted < count; start += windows.stride) {
    const int64_t stop = std::min(start + windows.window, count);
    FATHOM_ASSIGN_OR_RETURN(
        const std::vector<double> more,
        WindowBits(runner, vocab_size,
                   ids.subspan(static_cast<size_t>(start), static_cast<size_t>(stop - start)),
                   counted - start, rope_row, windows.chunk, pool));
    bits.insert(bits.end(), more.begin(), more.end());
    counted = stop;
  }
  return bits;
}

}  // namespace fathom::model
