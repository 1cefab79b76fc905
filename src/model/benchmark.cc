#include "model/benchmark.h"

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "cost/measure.h"
#include "event/ring.h"

namespace fathom::model {
namespace {

constexpr size_t kRingEvents = size_t{1} << 16;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Runs a prompt in chunks; the logits of its last token.
Result<std::vector<float>> FillPrompt(StepRunner& runner, int sequence,
                                      std::span<const int32_t> tokens, int64_t chunk_tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0;; begin += chunk_tokens) {
    const int64_t end = std::min(begin + chunk_tokens, count);
    const StepRunner::Piece piece{.sequence = sequence,
                                  .tokens = {tokens.begin() + begin, tokens.begin() + end}};
    const bool last = end == count;
    FATHOM_ASSIGN_OR_RETURN(
        std::vector<float> logits,
        runner.Step({&piece, 1}, last ? StepRunner::Rows::kLast : StepRunner::Rows::kNone));
    if (last) return logits;
  }
}

class Bench {
 public:
  Bench(Model& model, const StepRunner::Setup& setup, const BenchmarkOptions& options)
      : model_(model),
        setup_(setup),
        options_(options),
        random_(options.seed),
        ring_(kRingEvents),
        probe_(*setup.pool) {
    setup_.sink = event::Sink(&ring_);
  }

  Result<BenchmarkRow> Prefill(int64_t prompt_tokens) {
    FATHOM_ASSIGN_OR_RETURN(StepRunner runner, Runner(1, prompt_tokens));
    BenchmarkRow row{
        .role = ops::Role::kPrompt, .context_tokens = prompt_tokens, .tokens = prompt_tokens};
    const std::vector<int32_t> prompt = Tokens(prompt_tokens);
    FATHOM_TRY(Fill(runner, prompt));
    Drain(nullptr);
    std::vector<double> times, reads;
    times.reserve(static_cast<size_t>(options_.repeats));
    for (int r = 0; r < options_.repeats; ++r) {
      runner.Truncate(0, 0);
      const int64_t start = NowNs();
      FATHOM_TRY(Fill(runner, prompt));
      times.push_back(static_cast<double>(NowNs() - start) * 1e-9);
      Drain(&row);
      reads.push_back(probe_.Pass());
    }
    Summarise(row, times, reads);
    return row;
  }

  Result<BenchmarkRow> Decode(int64_t prompt_tokens, int batch) {
    FATHOM_ASSIGN_OR_RETURN(StepRunner runner, Runner(batch, prompt_tokens));
    for (int s = 0; s < batch; ++s) FATHOM_TRY(Fill(runner, Tokens(prompt_tokens), s));
    BenchmarkRow row{.role = ops::Role::kGenerated,
                     .batch = batch,
                     .context_tokens = prompt_tokens + options_.decode_steps + 1,
                     .tokens = batch};
    std::vector<double> times, reads;
    times.reserve(static_cast<size_t>(options_.decode_steps));
    for (int64_t step = -1; step < options_.decode_steps; ++step) {
      FATHOM_ASSIGN_OR_RETURN(const double seconds, DecodeStep(runner, batch));
      const bool warm_up = step < 0;
      Drain(warm_up ? nullptr : &row);
      if (!warm_up) times.push_back(seconds);
      reads.push_back(probe_.Pass());
    }
    Summarise(row, times, reads);
    return row;
  }

  Result<EventCost> CostOfEvents(int64_t prompt_tokens) {
    FATHOM_ASSIGN_OR_RETURN(StepRunner runner, Runner(1, prompt_tokens));
    const std::vector<int32_t> prompt = Tokens(prompt_tokens);
    FATHOM_TRY(Fill(runner, prompt));
    EventCost cost{.pairs = options_.decode_steps};
    std::vector<double> off, on, percent;
    uint64_t events = 0;
    for (int64_t pair = -1; pair < cost.pairs; ++pair) {
      std::array<double, 2> seconds = {};
      for (int turn = 0; turn < 2; ++turn) {
        // Both ways start a pair equally often, and every step has the same length.
        const bool with = (turn + pair) % 2 == 0;
        runner.Truncate(0, prompt_tokens);
        runner.set_sink(with ? setup_.sink : event::Sink());
        FATHOM_ASSIGN_OR_RETURN(seconds[with ? 1 : 0], DecodeStep(runner, 1));
      }
      const uint64_t emitted = Drain(nullptr);
      if (pair < 0) continue;  // warms up
      events += emitted;
      off.push_back(seconds[0]);
      on.push_back(seconds[1]);
      percent.push_back(100 * (seconds[1] / seconds[0] - 1));
    }
    cost.events_per_step = static_cast<double>(events) / static_cast<double>(cost.pairs);
    cost.off_seconds = Median(off);
    cost.on_seconds = Median(on);
    cost.percent = Median(percent);
    return cost;
  }

 private:
  Result<StepRunner> Runner(int sequences, int64_t prompt_tokens) {
    setup_.sequences = sequences;
    setup_.max_tokens = prompt_tokens + options_.decode_steps + 1;
    return StepRunner::Make(model_, setup_);
  }

  // One token for each of `batch` sequences; seconds.
  Result<double> DecodeStep(StepRunner& runner, int batch) {
    std::vector<StepRunner::Piece> pieces;
    pieces.reserve(static_cast<size_t>(batch));
    for (int s = 0; s < batch; ++s) {
      pieces.push_back({.sequence = s, .tokens = Tokens(1), .role = ops::Role::kGenerated});
    }
    const int64_t start = NowNs();
    FATHOM_TRY(runner.Step(pieces, StepRunner::Rows::kLast));
    return static_cast<double>(NowNs() - start) * 1e-9;
  }

  std::vector<int32_t> Tokens(int64_t count) {
    std::uniform_int_distribution<int32_t> id(0, model_.vocab_size() - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = id(random_);
    return tokens;
  }

  Status Fill(StepRunner& runner, std::span<const int32_t> tokens, int sequence = 0) {
    return FillPrompt(runner, sequence, tokens, options_.chunk_tokens).map([](auto) {});
  }

  // Adds the ops since the last call to `row`, null drops them; how many events there were.
  uint64_t Drain(BenchmarkRow* row) {
    std::array<event::Event, 256> events;
    uint64_t drained = 0;
    for (size_t n = ring_.Drain(events); n > 0; n = ring_.Drain(events)) {
      drained += n;
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
    return drained;
  }

  static void Summarise(BenchmarkRow& row, const std::vector<double>& times,
                        const std::vector<double>& reads) {
    row.read_bytes_per_s = Median(reads);
    row.seconds = Median(times);
    row.slowest_seconds = *std::max_element(times.begin(), times.end());
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
  cost::ReadProbe probe_;
};

Status Check(const Model& model, const BenchmarkOptions& options) {
  if (options.prompt_tokens.empty() || options.chunk_tokens < 1 || options.decode_steps < 0 ||
      options.repeats < 0) {
    return Err(Code::kInvalidArgument,
               "{} prompt lengths, chunks of {} tokens, {} decode steps, {} repeats: expected a "
               "length, a token and no negative number",
               options.prompt_tokens.size(), options.chunk_tokens, options.decode_steps,
               options.repeats);
  }
  for (const int64_t prompt : options.prompt_tokens) {
    if (prompt < 1 || prompt + options.decode_steps + 1 > model.max_context_tokens()) {
      return Err(Code::kInvalidArgument,
                 "{} prompt tokens and {} decode steps: expected at least one token, and at most "
                 "{} together (the model's context)",
                 prompt, options.decode_steps, model.max_context_tokens() - 1);
    }
  }
  for (const int batch : options.batches) {
    if (batch < 1) return Err(Code::kInvalidArgument, "batch {}: expected at least 1", batch);
  }
  return {};
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunBenchmark(Model& model, const StepRunner::Setup& setup,
                                               const BenchmarkOptions& options) {
  FATHOM_TRY(Check(model, options));
  if (options.repeats == 0 && options.decode_steps == 0) {
    return Err(Code::kInvalidArgument,
               "neither repeats of a prefill nor decode steps: nothing "
               "to measure");
  }
  Bench bench(model, setup, options);
  std::vector<BenchmarkRow> rows;
  for (const int64_t prompt : options.prompt_tokens) {
    if (options.repeats > 0) {
      FATHOM_ASSIGN_OR_RETURN(rows.emplace_back(), bench.Prefill(prompt));
    }
    if (options.decode_steps == 0) continue;
    for (const int batch : options.batches) {
      FATHOM_ASSIGN_OR_RETURN(rows.emplace_back(), bench.Decode(prompt, batch));
    }
  }
  return rows;
}

Result<EventCost> MeasureEventCost(Model& model, const StepRunner::Setup& setup,
                                   const BenchmarkOptions& options) {
  FATHOM_TRY(Check(model, options));
  if (options.decode_steps == 0) {
    return Err(Code::kInvalidArgument,
               "the cost of events is measured on decode steps: expected "
               "at least one");
  }
  return Bench(model, setup, options).CostOfEvents(options.prompt_tokens.front());
}

Result<std::vector<float>> LogitsOf(Model& model, StepRunner::Setup setup,
                                    std::span<const int32_t> ids, int64_t prompt_tokens,
                                    int64_t chunk_tokens) {
  const auto count = static_cast<int64_t>(ids.size());
  if (prompt_tokens < 1 || prompt_tokens > count || count > model.max_context_tokens() ||
      chunk_tokens < 1) {
    return Err(Code::kInvalidArgument,
               "a prompt of {} of {} token ids in chunks of {}: expected at least one token, no "
               "more than there are, and at most {} ids (the model's context)",
               prompt_tokens, count, chunk_tokens, model.max_context_tokens());
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.vocab_size()) {
      return Err(Code::kInvalidArgument, "token id {}: expected 0 to {}", id,
                 model.vocab_size() - 1);
    }
  }
  setup.sequences = 1;
  setup.max_tokens = count;
  FATHOM_ASSIGN_OR_RETURN(StepRunner runner, StepRunner::Make(model, setup));
  FATHOM_ASSIGN_OR_RETURN(
      std::vector<float> logits,
      FillPrompt(runner, 0, ids.first(static_cast<size_t>(prompt_tokens)), chunk_tokens));
  for (const int32_t id : ids.subspan(static_cast<size_t>(prompt_tokens))) {
    const StepRunner::Piece piece{.tokens = {id}, .role = ops::Role::kGenerated};
    FATHOM_ASSIGN_OR_RETURN(const std::vector<float> row,
                            runner.Step({&piece, 1}, StepRunner::Rows::kLast));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace fathom::model
