// What the engine costs besides the model: the scheduler a step, the sampler a row.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "engine/scheduler.h"
#include "kernels/cpu/select.h"
#include "ops/sample.h"

namespace fathom {
namespace {

using engine::Batch;
using engine::Sequence;

double Percentile(std::vector<double>& values, double p) {
  const auto at = static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

// Steady serving: `running` sequences generate, each that ends is replaced by one with a prompt of
// 512 tokens, half of it shared. One iteration is Schedule, Apply of every entry and Complete.
void SchedulerStep(benchmark::State& state) {
  const auto running = static_cast<int32_t>(state.range(0));
  constexpr int32_t kPrompt = 512;
  constexpr int32_t kAnswer = 256;
  engine::PagePool pool(running * 16 + 64);
  engine::PrefixCache cache(pool, {.page_tokens = 64}, {});
  engine::Scheduler scheduler({.max_running = running,
                               .token_budget = 2 * running + 512,
                               .max_prompt_tokens_per_step = 512},
                              cache);
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::mt19937 random(1);
  uint64_t next_id = 1;
  int64_t now = 0;
  const auto add = [&] {
    engine::RequestSpec spec{.id = next_id++, .max_tokens = kAnswer};
    for (int32_t i = 0; i < kPrompt; ++i) {
      spec.prompt.push_back(i < kPrompt / 2 ? i : static_cast<int32_t>(random() % 50'000));
    }
    auto sequence = std::make_unique<Sequence>(std::move(spec), nullptr);
    sequence->max_total = kPrompt + kAnswer;
    sequence->path = cache.OpenPath(0, "", sequence->spec.prompt, sequence->max_total);
    scheduler.Add(*sequence, ++now);
    sequences.push_back(std::move(sequence));
  };
  for (int32_t i = 0; i < running; ++i) add();
  Batch batch;
  batch.entries.reserve(static_cast<size_t>(running));
  engine::Transitions transitions;
  const int32_t token = 7;
  std::vector<double> ns;
  const auto step = [&] {
    const int64_t start = NowNs();
    scheduler.Schedule(++now, batch, transitions);
    for (const engine::BatchEntry& entry : batch.entries) {
      scheduler.Apply(entry, {&token, entry.needs_logits ? 1U : 0U});
    }
    scheduler.Complete(batch.step_id);
    ns.push_back(static_cast<double>(NowNs() - start));
    const size_t ended = scheduler.retired().size();
    for (const Sequence* gone : scheduler.retired()) {
      std::erase_if(sequences, [gone](const auto& s) { return s.get() == gone; });
    }
    scheduler.retired().clear();
    for (size_t i = 0; i < ended; ++i) add();
  };
  for (int i = 0; i < kAnswer; ++i) step();
  ns.clear();
  for (auto _ : state) step();
  state.counters["p50_ns"] = Percentile(ns, 0.5);
  state.counters["p99_ns"] = Percentile(ns, 0.99);
}
BENCHMARK(SchedulerStep)->Arg(1)->Arg(8)->Arg(32)->Arg(256)->Iterations(4096);

// One row of DeepSeek-V3's vocabulary.
void SampleRow(benchmark::State& state, const ops::sample::Row& row) {
  constexpr int64_t kVocab = 129'280;
  const auto device = ops::MakeCpuDevice();
  ThreadPool pool(1);
  ops::Comm comm;
  std::vector<float> logits(kVocab);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  for (float& value : logits) value = normal(random);
  std::vector<std::byte> memory(ops::sample::WorkspaceBytes(kVocab, 1) + Arena::kAlignment);
  Arena arena(memory);
  ops::Context context{*device, pool, **kernels::cpu::Select(""), comm, arena, {}};
  const int32_t one = 1;
  int32_t sampled = 0;
  ops::sample::Choice choice;
  ops::sample::Args args;
  args.logits = TensorView::Contiguous(logits.data(), DType::kF32, {1, kVocab});
  args.rows = &row;
  args.num_rows = &one;
  args.sampled = &sampled;
  args.choices = &choice;
  for (auto _ : state) {
    if (!ops::sample::Run(args, context)) state.SkipWithError("sampling failed");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(SampleRow, greedy, {.temperature = 0});
BENCHMARK_CAPTURE(SampleRow, temperature, {.temperature = 0.6F});
BENCHMARK_CAPTURE(SampleRow, top_p_95, {.temperature = 0.6F, .top_p = 0.95F});
BENCHMARK_CAPTURE(SampleRow, top_k_50_top_p_95, {.temperature = 0.6F, .top_p = 0.95F, .top_k = 50});
BENCHMARK_CAPTURE(SampleRow, logprobs_20, {.temperature = 0.6F, .top_logprobs = 20});

}  // namespace
}  // namespace fathom

BENCHMARK_MAIN();
