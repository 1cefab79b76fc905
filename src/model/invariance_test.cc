// Logits have the same bits whatever the batch, the pages, the chunks, the threads and the device's
// timing.
#include <gtest/gtest.h>

#include <numeric>

#include "base/strings.h"
#include "model/test_runner.h"
#include "ops/deferred_device.h"

namespace fathom::model {
namespace {

constexpr size_t kTokens = 330;         // more than one span of 256 keys
constexpr size_t kGeneratedFrom = 290;  // in the middle of a page

uint64_t HashOf(std::span<const float> logits) {
  return Hash64({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
}

class Invariance : public testing::TestWithParam<const char*> {
 protected:
  Invariance() : golden_(GetParam()), tokens_(golden_.ids.first(kTokens)) {}

  std::unique_ptr<Decoder> Load(ops::Device& device, int page_tokens = 64) {
    LoadOptions options;
    options.page_tokens = page_tokens;
    options.max_memory_bytes = uint64_t{1} << 30;
    return LoadForTest(golden_.directory, options, device);
  }
  uint64_t Reference() {
    const auto model = Load(*cpu_);
    TestRunner runner(*model, {.device = cpu_.get()});
    return HashOf(runner.Run(0, tokens_, 1000, kGeneratedFrom));
  }

  GoldenCase golden_;
  std::span<const int32_t> tokens_;
  std::unique_ptr<ops::Device> cpu_ = ops::MakeCpuDevice();
};

TEST_P(Invariance, ChunksAndPages) {
  const uint64_t expected = Reference();
  for (const int page_tokens : {16, 32, 128}) {
    const auto model = Load(*cpu_, page_tokens);
    for (const size_t chunk : {size_t{7}, size_t{64}, size_t{200}}) {
      TestRunner runner(*model, {.device = cpu_.get(), .threads = 2, .page_seed = chunk});
      EXPECT_EQ(HashOf(runner.Run(0, tokens_, chunk, kGeneratedFrom)), expected)
          << "pages of " << page_tokens << ", chunks of " << chunk;
    }
  }
}

// Generated tokens that are recomputed after a preemption come many at once.
TEST_P(Invariance, RecomputedGeneratedTokens) {
  const uint64_t expected = Reference();
  const auto model = Load(*cpu_);
  TestRunner runner(*model, {.device = cpu_.get(), .page_seed = 3});
  EXPECT_EQ(HashOf(runner.Run(0, tokens_, 50, kGeneratedFrom, 0, 17)), expected);
}

TEST_P(Invariance, Batch) {
  const uint64_t expected = Reference();
  const auto model = Load(*cpu_);
  TestRunner runner(
      *model,
      {.device = cpu_.get(), .threads = 2, .page_seed = 5, .max_tokens = 512, .sequences = 4});
  const auto slice = [&](size_t begin, size_t end) {
    return std::vector<int32_t>(golden_.ids.begin() + static_cast<int64_t>(begin),
                                golden_.ids.begin() + static_cast<int64_t>(end));
  };
  // Sequence 2 is the one that is watched; others start, generate and prefill beside it.
  std::vector<float> logits;
  size_t done = 0;
  const auto vocab = static_cast<size_t>(model->vocab_size());
  while (done < kTokens) {
    const bool prompt = done < kGeneratedFrom;
    const size_t end = prompt ? std::min(done + 37, kGeneratedFrom) : done + 1;
    std::vector<TestRunner::Piece> pieces;
    if (done % 2 == 0) pieces.push_back({0, slice(done + 20, done + 25), ops::Role::kPrompt});
    if (done > 40) pieces.push_back({1, slice(done, done + 1), ops::Role::kGenerated});
    const size_t before =
        std::accumulate(pieces.begin(), pieces.end(), size_t{0},
                        [](size_t n, const auto& piece) { return n + piece.tokens.size(); });
    pieces.push_back({2, slice(done, end), prompt ? ops::Role::kPrompt : ops::Role::kGenerated});
    if (done > 100) pieces.push_back({3, slice(done + 7, done + 10), ops::Role::kPrompt});
    const std::vector<float> step = runner.Step(pieces);
    logits.insert(logits.end(), step.begin() + static_cast<int64_t>(before * vocab),
                  step.begin() + static_cast<int64_t>((before + end - done) * vocab));
    done = end;
  }
  EXPECT_EQ(HashOf(logits), expected);
}

// Work that runs late, in memory that the host cannot read meanwhile.
TEST_P(Invariance, DeferredDevice) {
  const uint64_t expected = Reference();
  ops::DeferredDevice device;
  const auto model = Load(*cpu_);
  TestRunner runner(*model, {.device = &device, .max_tokens = 384});
  EXPECT_EQ(HashOf(runner.Run(0, tokens_, 200, kGeneratedFrom)), expected);
}

TEST_P(Invariance, PlanIsTight) {
  const auto model = Load(*cpu_);
  TestRunner runner(*model, {.device = cpu_.get()});
  runner.Run(0, tokens_.first(200), 200, 200);
  EXPECT_LE(runner.runner().arena_peak(), runner.runner().arena_planned());
  EXPECT_GE(static_cast<double>(runner.runner().arena_peak()),
            0.8 * static_cast<double>(runner.runner().arena_planned()));
}

INSTANTIATE_TEST_SUITE_P(Cases, Invariance,
                         testing::Values("deepseek_v2_lite", "deepseek_v3", "qwen2", "llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fathom::model
