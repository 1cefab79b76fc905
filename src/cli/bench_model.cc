// fathom bench model MODEL: how fast its steps are beside what the machine allows; with
// --event-cost what recording costs them, with --logits what they compute, with --text how well
// the model predicts a text.
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/strings.h"
#include "base/write_file.h"
#include "cli/bare_model.h"
#include "cli/bench_text.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "cost/hardware.h"
#include "model/benchmark.h"
#include "ops/cpu_isa.h"

namespace fathom::cli {
namespace {

using nlohmann::ordered_json;

struct BenchModelOptions {
  ModelOptions model;
  model::BenchmarkOptions bench;
  bool ops = false;
  bool event_cost = false;
  std::string logits;
  std::string tokens;
  TextOptions text;
  std::string json;
};

// FLOP/s of the linear op on a product that stays in cache: the roof of compute-bound ops.
Result<double> MeasureProducts(BareModel& bare, ops::Precision precision) {
  constexpr int64_t kSize = 512;
  constexpr int kRuns = 20;
  std::vector<float> source(kSize * kSize, 0.01F), input(kSize * kSize, 0.02F),
      output(kSize * kSize);
  const auto view = [](std::vector<float>& v) {
    return TensorView::Contiguous(v.data(), DType::kF32, {kSize, kSize});
  };
  FATHOM_ASSIGN_OR_RETURN(
      const ops::linear::PackedWeight weight,
      ops::linear::Pack({.weight = view(source)}, precision, *bare.device, *bare.cpu));
  const ops::linear::Plan plan = ops::linear::MakePlan(weight, kSize);
  FATHOM_ASSIGN_OR_RETURN(const ops::DeviceBuffer scratch,
                          ops::DeviceBuffer::Make(*bare.device, plan.workspace_bytes));
  ops::Comm comm;
  double best = 0;
  for (int i = 0; i < kRuns; ++i) {
    Arena arena({static_cast<std::byte*>(scratch.data()), scratch.size()});
    ops::Context context{.device = *bare.device,
                         .pool = *bare.pool,
                         .cpu = *bare.cpu,
                         .comm = comm,
                         .arena = arena,
                         .sink = {}};
    const int64_t start = NowNs();
    FATHOM_TRY(
        ops::linear::Run(plan, weight, {.input = view(input), .output = view(output)}, context));
    best = std::max(best, 2.0 * kSize * kSize * kSize * 1e9 / static_cast<double>(NowNs() - start));
  }
  return best;
}

void PrintOps(const model::BenchmarkRow& row, double bytes_per_s, double flops_per_s) {
  for (size_t i = 0; i < row.ops.size(); ++i) {
    const model::OpTotals& op = row.ops[i];
    if (op.seconds == 0) continue;
    const double floor = cost::RooflineSeconds({op.bytes, op.flops}, bytes_per_s, flops_per_s);
    fmt::print(
        "    {:<14} {:>9}  {:>5.1f} %  {:>6.1f} GB/s  {:>7.1f} GFLOP/s  {:>5.1f} % of roof\n",
        event::NameOf(static_cast<event::Op>(i)), HumanNs(static_cast<int64_t>(op.seconds * 1e9)),
        100 * op.seconds / row.total.seconds, op.bytes / op.seconds / 1e9,
        op.flops / op.seconds / 1e9, 100 * floor / op.seconds);
  }
}

ordered_json RowToJson(const model::BenchmarkRow& row, double roof_seconds) {
  ordered_json ops = ordered_json::object();
  for (size_t i = 0; i < row.ops.size(); ++i) {
    const model::OpTotals& op = row.ops[i];
    if (op.seconds == 0) continue;
    ops[std::string(event::NameOf(static_cast<event::Op>(i)))] = {
        {"seconds", op.seconds}, {"bytes", op.bytes}, {"flops", op.flops}};
  }
  return {{"phase", row.role == ops::Role::kPrompt ? "prefill" : "decode"},
          {"batch", row.batch},
          {"context_tokens", row.context_tokens},
          {"tokens_per_s", row.tokens_per_second()},
          {"median_s", row.seconds},
          {"slowest_s", row.slowest_seconds},
          {"memory_bytes_per_s", row.read_bytes_per_s},
          {"bytes", row.total.bytes},
          {"flops", row.total.flops},
          {"percent_of_roof", 100 * roof_seconds / row.seconds},
          {"ops", ops}};
}

Result<int> Speed(const BenchModelOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(BareModel bare, LoadBareModel(options.model));
  model::Decoder& model = *bare.loaded.model;
  FATHOM_ASSIGN_OR_RETURN(const double flops_per_s,
                          MeasureProducts(bare, model.options().precision));
  fmt::print("{}, {}, {} threads, {}\n", model.name(), options.model.dtype,
             bare.pool->num_threads(), ops::IsaOf(*bare.cpu));
  fmt::print("products in cache {:.0f} GFLOP/s; memory as read between the steps of each row\n\n",
             flops_per_s / 1e9);
  FATHOM_ASSIGN_OR_RETURN(const std::vector<model::BenchmarkRow> rows,
                          model::RunBenchmark(model, bare.Setup(), options.bench));
  fmt::print("{:<8} {:>5} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}\n", "phase", "batch",
             "context", "tokens/s", "median", "slowest", "GB/s", "memory", "GFLOP/s", "% of roof");
  ordered_json json_rows = ordered_json::array();
  for (const model::BenchmarkRow& row : rows) {
    const double bytes_per_s = row.read_bytes_per_s;
    const double roof =
        cost::RooflineSeconds({row.total.bytes, row.total.flops}, bytes_per_s, flops_per_s);
    fmt::print("{:<8} {:>5} {:>8} {:>10.1f} {:>10} {:>10} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n",
               row.role == ops::Role::kPrompt ? "prefill" : "decode", row.batch, row.context_tokens,
               row.tokens_per_second(), HumanNs(static_cast<int64_t>(row.seconds * 1e9)),
               HumanNs(static_cast<int64_t>(row.slowest_seconds * 1e9)),
               row.total.bytes / row.seconds / 1e9, bytes_per_s / 1e9,
               row.total.flops / row.seconds / 1e9, 100 * roof / row.seconds);
    if (options.ops) PrintOps(row, bytes_per_s, flops_per_s);
    json_rows.push_back(RowToJson(row, roof));
  }
  if (!options.json.empty()) {
    const ordered_json json = {{"schema", "fathom.bench_model/1"},
                               {"model", model.name()},
                               {"dtype", options.model.dtype},
                               {"threads", bare.pool->num_threads()},
                               {"isa", ops::IsaOf(*bare.cpu)},
                               {"products_flops_per_s", flops_per_s},
                               {"rows", json_rows}};
    FATHOM_TRY(WriteFile(options.json, json.dump(2) + "\n"));
  }
  return kExitDone;
}

Result<int> EventCost(const BenchModelOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(BareModel bare, LoadBareModel(options.model));
  model::Decoder& model = *bare.loaded.model;
  FATHOM_ASSIGN_OR_RETURN(const model::EventCost cost,
                          model::MeasureEventCost(model, bare.Setup(), options.bench));
  fmt::print("{}, {} threads, decode at {} tokens, {} pairs of steps: {:.1f} events a step\n",
             model.name(), bare.pool->num_threads(), options.bench.prompt_tokens.front(),
             cost.pairs, cost.events_per_step);
  fmt::print("without events {}, with {}: {:+.2f} % (median of pairs)\n",
             HumanNs(static_cast<int64_t>(cost.off_seconds * 1e9)),
             HumanNs(static_cast<int64_t>(cost.on_seconds * 1e9)), cost.percent);
  if (!options.json.empty()) {
    const ordered_json json = {{"schema", "fathom.bench_events/1"},
                               {"model", model.name()},
                               {"dtype", options.model.dtype},
                               {"threads", bare.pool->num_threads()},
                               {"context_tokens", options.bench.prompt_tokens.front()},
                               {"pairs", cost.pairs},
                               {"events_per_step", cost.events_per_step},
                               {"off_s", cost.off_seconds},
                               {"on_s", cost.on_seconds},
                               {"percent", cost.percent}};
    FATHOM_TRY(WriteFile(options.json, json.dump(2) + "\n"));
  }
  return kExitDone;
}

// Whole numbers with white space between them.
Result<std::vector<int32_t>> ReadTokens(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  std::vector<int32_t> ids;
  std::string_view text = Trim(file.text());
  while (!text.empty()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const auto used = static_cast<size_t>(end - text.data());
    const std::string_view rest = Trim(text.substr(used));
    if (error != std::errc() || (!rest.empty() && rest.size() + used == text.size())) {
      return Err(Code::kInvalidArgument,
                 "{}: expected token ids with white space between them, "
                 "found '{}' after {} ids",
                 path, text.substr(0, 16), ids.size());
    }
    ids.push_back(id);
    text = rest;
  }
  return ids;
}

Result<int> Logits(const BenchModelOptions& options) {
  if (options.tokens.empty() || options.bench.prompt_tokens.size() != 1) {
    return Err(Code::kInvalidArgument, "--logits: expected --tokens FILE and one --prompt length");
  }
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokens(options.tokens));
  FATHOM_ASSIGN_OR_RETURN(BareModel bare, LoadBareModel(options.model));
  FATHOM_ASSIGN_OR_RETURN(
      const std::vector<float> logits,
      model::LogitsOf(*bare.loaded.model, bare.Setup(), ids, options.bench.prompt_tokens.front(),
                      options.bench.chunk_tokens));
  FATHOM_TRY(
      WriteFile(options.logits, std::string_view(reinterpret_cast<const char*>(logits.data()),
                                                 logits.size() * sizeof(float))));
  const auto vocab = static_cast<size_t>(bare.loaded.model->vocab_size());
  fmt::print(stderr, "{}: float32 [{}, {}]\n", options.logits, logits.size() / vocab, vocab);
  return kExitDone;
}

Result<int> BenchModel(const BenchModelOptions& options) {
  const int modes =
      int{options.event_cost} + int{!options.logits.empty()} + int{!options.text.files.empty()};
  if (modes > 1) {
    return Err(Code::kInvalidArgument, "--event-cost, --logits and --text: expected one of them");
  }
  if (options.logits.empty() && !options.tokens.empty()) {
    return Err(Code::kInvalidArgument, "--tokens: only --logits takes them");
  }
  if (options.event_cost) return EventCost(options);
  if (!options.logits.empty()) return Logits(options);
  if (options.text.files.empty()) {
    if (!options.text.contexts.empty()) {
      return Err(Code::kInvalidArgument, "--context: only --text takes it");
    }
    return Speed(options);
  }
  return options.text.contexts.empty() ? BitsPerByte(options.model, options.text, options.json)
                                       : BitsByContext(options.model, options.text, options.json);
}

}  // namespace

void AddBenchModel(Commands& commands) {
  auto options = std::make_shared<BenchModelOptions>();
  CLI::App* app =
      commands.Group("bench", "Benchmarks")
          .Add("model", "Prefill and decode speed beside the machine's roofs, or bits per byte",
               [options] { return BenchModel(*options); });
  BindBareModel(*app, options->model);
  app->add_option("--prompt", options->bench.prompt_tokens, "Prompt tokens; several are measured")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--chunk", options->bench.chunk_tokens, "Prompt tokens of one step")
      ->capture_default_str();
  app->add_option("--steps", options->bench.decode_steps, "Decode steps; 0: none")
      ->capture_default_str();
  app->add_option("--batch", options->bench.batches, "Sequences that decode together")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--repeats", options->bench.repeats, "Prefills, the median counts; 0: none")
      ->capture_default_str();
  app->add_flag("--ops", options->ops, "A line an op under each row");
  app->add_flag("--event-cost", options->event_cost,
                "What events cost a decode step instead: steps with and without them by turns");
  app->add_option("--logits", options->logits,
                  "Write float32 logits instead: of the last of --prompt tokens and of each token "
                  "after it");
  app->add_option("--tokens", options->tokens, "File with the token ids for --logits");
  app->add_option("--text", options->text.files,
                  "Bits per byte of these files instead; lines <|doc|> divide documents")
      ->delimiter(',');
  app->add_option("--window", options->text.windows.window, "Tokens of a window (--text)")
      ->capture_default_str();
  app->add_option("--stride", options->text.windows.stride,
                  "Tokens from window to window (--text), or from targets to targets (--context)")
      ->capture_default_str();
  app->add_option("--context", options->text.contexts,
                  "Predict the same tokens with these numbers of tokens at most in sight (--text)")
      ->delimiter(',');
  app->add_option("--json", options->json, "Also write JSON there; - is standard output");
}

}  // namespace fathom::cli
