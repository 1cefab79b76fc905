// MB/s of one thread over a file: FATHOM_TOKENIZER=tokenizer.json FATHOM_TEXT=file. bench/text.py
// runs it beside the `tokenizers` package and compares the ids first.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/mapped_file.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace fathom::text {
namespace {

struct Inputs {
  Tokenizer tokenizer;
  MappedFile text;
};

const Inputs& Get() {
  static const auto* const kInputs = [] {
    const char* tokenizer = std::getenv("FATHOM_TOKENIZER");
    const char* text = std::getenv("FATHOM_TEXT");
    if (tokenizer == nullptr || text == nullptr) {
      std::fprintf(stderr, "set FATHOM_TOKENIZER and FATHOM_TEXT, or run bench/text.py\n");
      std::exit(2);
    }
    return new Inputs{Tokenizer::Load(tokenizer, "").value(), MappedFile::Open(text).value()};
  }();
  return *kInputs;
}

void BM_Load(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Tokenizer::Load(std::getenv("FATHOM_TOKENIZER"), "").value());
  }
}

void BM_Encode(benchmark::State& state) {
  const Inputs& inputs = Get();
  size_t num_tokens = 0;
  for (auto _ : state) num_tokens = inputs.tokenizer.Encode(inputs.text.text()).value().size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(inputs.text.text().size()));
  state.counters["tokens"] = static_cast<double>(num_tokens);
}

void BM_Detokenize(benchmark::State& state) {
  const Inputs& inputs = Get();
  const std::vector<int32_t> ids = inputs.tokenizer.Encode(inputs.text.text()).value();
  size_t next = 0;
  Detokenizer detokenizer(inputs.tokenizer);
  for (auto _ : state) {
    benchmark::DoNotOptimize(detokenizer.Push(ids[next]));
    next = next + 1 == ids.size() ? 0 : next + 1;
  }
}

BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Encode)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Detokenize);

}  // namespace
}  // namespace fathom::text

BENCHMARK_MAIN();
