#include "model/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

namespace fathom::model {
namespace {

// What one op of a step wrote, on the host.
struct Output {
  event::Op op = event::Op::kNone;
  int layer = -1;
  DType dtype = DType::kF32;
  int64_t columns = 0;
  std::vector<uint32_t> values;  // [tokens, columns], bits of f32 or i32

  std::span<const uint32_t> Row(int64_t row) const {
    return {values.data() + row * columns, static_cast<size_t>(columns)};
  }
};

// Collects the outputs of a step; a deque keeps their buffers in place while copies are pending.
class Recorder {
 public:
  explicit Recorder(Decoder& model) : model_(model) {
    model.set_probe([this](event::Op op, int layer, const TensorView& output,
                           ops::Context& context) {
      Output& kept = outputs_.emplace_back(Output{op, layer, output.dtype, output.shape[1], {}});
      kept.values.resize(static_cast<size_t>(output.shape[0] * output.shape[1]));
      for (int64_t row = 0; row < output.shape[0]; ++row) {
        const auto* source =
            static_cast<const char*>(output.data) + row * output.stride[0] * SizeOf(output.dtype);
        context.device.CopyOut(context.stream, kept.values.data() + row * kept.columns, source,
                               static_cast<size_t>(kept.columns) * sizeof(uint32_t));
      }
    });
  }
  ~Recorder() { model_.set_probe(nullptr); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::deque<Output> Take() { return std::exchange(outputs_, {}); }

 private:
  Decoder& model_;
  std::deque<Output> outputs_;
};

double RelativeError(std::span<const uint32_t> reference, std::span<const uint32_t> served) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double expected = std::bit_cast<float>(reference[i]);
    const double difference = std::bit_cast<float>(served[i]) - expected;
    distance += difference * difference;
    norm += expected * expected;
  }
  const double error = std::sqrt(distance / std::max(norm, 1e-30));
  return std::isnan(error) ? HUGE_VAL : error;
}

bool SameExperts(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  std::vector<uint32_t> x(a.begin(), a.end()), y(b.begin(), b.end());
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  return x == y;
}

}  // namespace

Result<VerifyReport> Verify(Decoder& reference, StepRunner::Setup reference_setup, Decoder& served,
                            StepRunner::Setup served_setup, std::span<const int32_t> tokens,
                            const VerifyOptions& options) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (options.generated_tokens < 0 || options.generated_tokens >= count) {
    return Err(Code::kInvalidArgument, "{} generated tokens of {}: expected fewer",
               options.generated_tokens, count);
  }
  for (StepRunner::Setup* setup : {&reference_setup, &served_setup}) {
    setup->sequences = 1;
    setup->max_tokens = count;
  }
  FATHOM_ASSIGN_OR_RETURN(StepRunner reference_runner,
                          StepRunner::Make(reference, reference_setup));
  FATHOM_ASSIGN_OR_RETURN(StepRunner served_runner, StepRunner::Make(served, served_setup));
  FATHOM_ASSIGN_OR_RETURN(const RopeChoice reference_rope, reference.ChooseRope(count));
  FATHOM_ASSIGN_OR_RETURN(const RopeChoice served_rope, served.ChooseRope(count));
  Recorder reference_outputs(reference);
  Recorder served_outputs(served);

  VerifyReport report;
  report.tokens = count;
  int64_t first_rerouted = count;
  const int64_t prompt = count - options.generated_tokens;
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = begin < prompt ? prompt : begin + 1;
    StepRunner::Piece piece{.tokens = {tokens.begin() + begin, tokens.begin() + end},
                            .role = begin < prompt ? ops::Role::kPrompt : ops::Role::kGenerated,
                            .rope_row = reference_rope.row};
    FATHOM_TRY(reference_runner.Step({&piece, 1}, StepRunner::Rows::kAll));
    piece.rope_row = served_rope.row;
    FATHOM_TRY(served_runner.Step({&piece, 1}, StepRunner::Rows::kAll));
    const std::deque<Output> expected = reference_outputs.Take();
    const std::deque<Output> found = served_outputs.Take();
    FATHOM_CHECK(expected.size() == found.size());
    report.ops.resize(expected.size());
    std::vector<bool> rerouted(static_cast<size_t>(end - begin));
    for (size_t i = 0; i < expected.size(); ++i) {
      VerifyOp& op = report.ops[i];
      op.op = expected[i].op;
      op.layer = expected[i].layer;
      for (int64_t row = 0; row < end - begin; ++row) {
        if (rerouted[static_cast<size_t>(row)]) continue;
        if (expected[i].dtype == DType::kI32) {
          if (SameExperts(expected[i].Row(row), found[i].Row(row))) continue;
          rerouted[static_cast<size_t>(row)] = true;
          report.reroutes.push_back({.layer = op.layer, .token = begin + row});
          first_rerouted = std::min(first_rerouted, begin + row);
          continue;
        }
        const double error = RelativeError(expected[i].Row(row), found[i].Row(row));
        const double tolerance =
            options.tolerance * (begin + row > first_rerouted ? options.inherited : 1);
        op.excess = std::max(op.excess, error / std::max(tolerance, 1e-300));
        if (error > op.worst) {
          op.worst = error;
          op.token = begin + row;
        }
      }
    }
    report.compared_tokens += std::count(rerouted.begin(), rerouted.end(), false);
    begin = end;
  }
  for (size_t i = 0; i < report.ops.size() && !report.first_divergent; ++i) {
    if (report.ops[i].excess > 1) report.first_divergent = i;
  }
  return report;
}

std::string VerifyTable(const VerifyReport& report, const VerifyOptions& options) {
  std::map<event::Op, VerifyOp> worst;
  for (const VerifyOp& op : report.ops) {
    VerifyOp& kept = worst.try_emplace(op.op, op).first->second;
    if (op.worst > kept.worst) kept = op;
  }
  std::string table = fmt::format("{:<14} {:>10}  {:>5}  {:>5}\n", "op", "worst", "layer", "token");
  for (const auto& [op, entry] : worst) {
    if (op == event::Op::kGate) continue;  // chooses; does not compute a state
    table += fmt::format("{:<14} {:>10.2e}  {:>5}  {:>5}\n", event::NameOf(op), entry.worst,
                         entry.layer < 0 ? "-" : fmt::format("{}", entry.layer), entry.token);
  }
  if (!report.reroutes.empty()) {
    table += fmt::format("\n{} tokens were routed to other experts and not compared further:\n",
                         report.tokens - report.compared_tokens);
    for (const Reroute& r : report.reroutes) {
      table += fmt::format("  layer {}, token {}\n", r.layer, r.token);
    }
  }
  if (report.first_divergent) {
    const VerifyOp& first = report.ops[*report.first_divergent];
    table += fmt::format("\nfirst to diverge: {}{} at token {}, relative error {:.2e} > {:.0e}\n",
                         first.layer < 0 ? "" : fmt::format("layer {}, ", first.layer),
                         event::NameOf(first.op), first.token, first.worst, options.tolerance);
  } else {
    table += fmt::format("\n{} of {} tokens agree within {:.0e} in every op\n",
                         report.compared_tokens, report.tokens, options.tolerance);
  }
  return table;
}

}  // namespace fathom::model
