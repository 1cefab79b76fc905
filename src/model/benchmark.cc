#include "model/benchmark.h"

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "event/ring.h"

namespace fathom::model {
namespace {

constexpr size_t kRingEvents = size_t{1} << 16;

class Bench {
 public:
  Bench(Model& model, const StepRunner::Setup& setup, const BenchmarkOptions& options)
      : model_(model), setup_(setup), options_(options), random_(options.seed), ring_(kRingEvents) {
    setup_.sink = event::Sink(&ring_);
    setup_.max_tokens = options.prompt_tokens + options.decode_steps + 1;
  }

  Result<BenchmarkRow> Prefill() {
    setup_.sequences = 1;
    FATHOM_ASSIGN_OR_RETURN(StepRunner runner, StepRunner::Make(model_, setup_));
    BenchmarkRow row{.role = ops::Role::kPrompt,
                     .context_tokens = options_.prompt_tokens,
                     .tokens = options_.prompt_tokens};
    const std::vector<int32_t> prompt = Tokens(options_.prompt_tokens);
    FATHOM_TRY(Fill(runner, 0, prompt));
    Drain(nullptr);
    std::vector<double> times;
    times.reserve(static_cast<size_t>(options_.repeats));
    for (int r = 0; r < options_.repeats; ++r) {
      runner.Truncate(0, 0);
      const int64_t start = NowNs();
      FATHOM_TRY(Fill(runner, 0, prompt));
      times.push_back(static_cast<double>(NowNs() - start) * 1e-9);
      Drain(&row);
    }
    Summarise(row, times);
    return row;
  }

  Result<BenchmarkRow> Decode(int batch) {
    setup_.sequences = batch;
    FATHOM_ASSIGN_OR_RETURN(StepRunner runner, StepRunner::Make(model_, setup_));
    for (int s = 0; s < batch; ++s) FATHOM_TRY(Fill(runner, s, Tokens(options_.prompt_tokens)));
    BenchmarkRow row{.role = ops::Role::kGenerated,
                     .batch = batch,
                     .context_tokens = options_.prompt_tokens + options_.decode_steps + 1,
                     .tokens = batch};
    std::vector<double> times;
    times.reserve(static_cast<size_t>(options_.decode_steps));
    for (int64_t step = -1; step < options_.decode_steps; ++step) {
      std::vector<StepRunner::Piece> pieces;
      pieces.reserve(static_cast<size_t>(batch));
      for (int s = 0; s < batch; ++s) {
        pieces.push_back({.sequence = s, .tokens = Tokens(1), .role = ops::Role::kGenerated});
      }
      const int64_t start = NowNs();
      FATHOM_TRY(runner.Step(pieces, StepRunner::Rows::kLast));
      const double seconds = static_cast<double>(NowNs() - start) * 1e-9;
      const bool warm_up = step < 0;
      Drain(warm_up ? nullptr : &row);
      if (!warm_up) times.push_back(seconds);
    }
    Summarise(row, times);
    return row;
  }

 private:
  std::vector<int32_t> Tokens(int64_t count) {
    std::uniform_int_distribution<int32_t> id(0, model_.vocab_size() - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = id(random_);
    return tokens;
  }

  Status Fill(StepRunner& runner, int sequence, const std::vector<int32_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < count; begin += options_.chunk_tokens) {
      const int64_t end = std::min(begin + options_.chunk_tokens, count);
      const StepRunner::Piece piece{.sequence = sequence,
                                    .tokens = {tokens.begin() + begin, tokens.begin() + end}};
      FATHOM_TRY(runner.Step({&piece, 1},
                             end == count ? StepRunner::Rows::kLast : StepRunner::Rows::kNone));
    }
    return {};
  }

  // Adds the ops since the last call to `row`; null drops them.
  void Drain(BenchmarkRow* row) {
    std::array<event::Event, 256> events;
    for (size_t n = ring_.Drain(events); n > 0; n = ring_.Drain(events)) {
      for (size_t i = 0; row != nullptr && i < n; ++i) {
        const event::Event& e = events[i];
        if (e.kind != event::Kind::kOp) continue;
        for (OpTotals* totals : {&row->ops[static_cast<size_t>(e.op)], &row->total}) {
          totals->seconds += static_cast<double>(e.duration_ns) * 1e-9;
          totals->bytes += static_cast<double>(e.value);
          totals->flops += static_cast<double>(e.aux);
        }
      }
    }
  }

  static void Summarise(BenchmarkRow& row, std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    row.seconds = times[times.size() / 2];
    row.slowest_seconds = times.back();
    const double units = static_cast<double>(times.size());
    const auto divide = [units](OpTotals& totals) {
      totals.seconds /= units;
      totals.bytes /= units;
      totals.flops /= units;
    };
    divide(row.total);
    for (OpTotals& totals : row.ops) divide(totals);
  }

  Model& model_;
  StepRunner::Setup setup_;
  const BenchmarkOptions& options_;
  std::mt19937_64 random_;
  event::Ring ring_;
};

}  // namespace

Result<std::vector<BenchmarkRow>> RunBenchmark(Model& model, StepRunner::Setup setup,
                                               const BenchmarkOptions& options) {
  const int64_t longest = options.prompt_tokens + options.decode_steps + 1;
  if (options.prompt_tokens < 1 || options.chunk_tokens < 1 || options.decode_steps < 1 ||
      options.repeats < 1 || longest > model.max_context_tokens()) {
    return Err(
        Code::kInvalidArgument,
        "{} prompt tokens and {} decode steps: expected at least one of each, and at most {} "
        "together (the model's context)",
        options.prompt_tokens, options.decode_steps, model.max_context_tokens() - 1);
  }
  Bench bench(model, setup, options);
  std::vector<BenchmarkRow> rows;
  FATHOM_ASSIGN_OR_RETURN(rows.emplace_back(), bench.Prefill());
  for (const int batch : options.batches) {
    if (batch < 1) return Err(Code::kInvalidArgument, "batch {}: expected at least 1", batch);
    FATHOM_ASSIGN_OR_RETURN(rows.emplace_back(), bench.Decode(batch));
  }
  return rows;
}

}  // namespace fathom::model
