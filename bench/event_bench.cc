// What an event costs its producer: the figure that the share of the event stream in a step's time
// is computed from (events of a step x ns / step time).
#include <benchmark/benchmark.h>

#include <thread>

#include "base/clock.h"
#include "event/ring.h"
#include "observe/ledger.h"
#include "observe/recorder.h"

namespace fathom {
namespace {

constexpr size_t kRing = 1 << 16;

void BM_ClockRead(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(NowNs());
}
BENCHMARK(BM_ClockRead);

// A span as ops record it: two clock reads and one push; a consumer empties the ring beside it.
void BM_SpanWhileRecording(benchmark::State& state) {
  event::Ring ring(kRing);
  observe::Ledger ledger;
  observe::Recorder recorder(&ring, {&ledger});
  const event::Sink sink(&ring);
  uint64_t step = 0;
  for (auto _ : state) {
    if (step % (kRing / 2) == 0) {  // a loop that only emits outruns any reader; a model does not
      state.PauseTiming();
      recorder.Flush();
      state.ResumeTiming();
    }
    const int64_t start = NowNs();
    sink.Emit({.start_ns = start,
               .duration_ns = NowNs() - start,
               .step_id = step++ / 64,
               .kind = event::Kind::kOp,
               .op = event::Op::kAttention});
  }
  state.counters["dropped"] = static_cast<double>(ring.dropped());
}
BENCHMARK(BM_SpanWhileRecording);

void BM_DisabledSink(benchmark::State& state) {
  event::Sink sink;
  benchmark::DoNotOptimize(sink);
  for (auto _ : state) sink.Emit({.kind = event::Kind::kOp});
}
BENCHMARK(BM_DisabledSink);

// The reader's side: a decode step of 61 layers with 10 ops each and 32 sequences.
void BM_LedgerConsumesAStep(benchmark::State& state) {
  observe::Ledger ledger;
  std::vector<event::Event> events;
  for (uint64_t id = 1; id <= 32; ++id) {
    events.push_back({.request_id = id, .kind = event::Kind::kRequestArrived});
  }
  ledger.Consume(events);
  uint64_t step = 0;
  for (auto _ : state) {
    events.clear();
    ++step;
    const auto t = static_cast<int64_t>(step) * 10'000'000;
    for (int op = 0; op < 610; ++op) {
      events.push_back({.start_ns = t + op * 1000,
                        .duration_ns = 1000,
                        .step_id = step,
                        .kind = event::Kind::kOp,
                        .op = static_cast<event::Op>(1 + op % 10)});
    }
    for (uint64_t id = 1; id <= 32; ++id) {
      events.push_back({.request_id = id,
                        .step_id = step,
                        .value = 1,
                        .flags = event::kGeneratedRole,
                        .kind = event::Kind::kStepSequence});
    }
    events.push_back({.start_ns = t,
                      .duration_ns = 700'000,
                      .step_id = step,
                      .value = 32,
                      .kind = event::Kind::kStep});
    ledger.Consume(events);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(events.size()));
}
BENCHMARK(BM_LedgerConsumesAStep)->Iterations(2000);

}  // namespace
}  // namespace fathom

BENCHMARK_MAIN();
