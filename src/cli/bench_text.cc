#include "cli/bench_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "base/strings.h"
#include "base/write_file.h"
#include "cli/bare_model.h"
#include "cli/terminal.h"
#include "text/tokenizer.h"

namespace fathom::cli {
namespace {

using nlohmann::ordered_json;

std::vector<std::string_view> Documents(std::string_view text) {
  constexpr std::string_view kSeparator = "\n<|doc|>\n";
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<std::string_view> documents;
  for (;;) {
    const size_t end = text.find(kSeparator);
    const std::string_view document = text.substr(0, end);
    if (!document.empty()) documents.push_back(document);
    if (end == std::string_view::npos) return documents;
    text.remove_prefix(end + kSeparator.size());
  }
}

struct Predictor {
  BareModel bare;
  text::Tokenizer tokenizer;
  model::StepRunner runner;
};

// `longest`: tokens of a window; `option` asked for it.
Result<Predictor> MakePredictor(const ModelOptions& options, const char* option, int64_t longest) {
  FATHOM_ASSIGN_OR_RETURN(BareModel bare, LoadBareModel(options));
  model::Decoder& model = *bare.loaded.model;
  FATHOM_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::LoadModel(bare.directory));
  if (longest > model.max_context_tokens()) {
    return Err(Code::kInvalidArgument, "{} {}: the model's context is {} tokens", option, longest,
               model.max_context_tokens());
  }
  model::StepRunner::Setup setup = bare.Setup();
  setup.max_tokens = longest;
  FATHOM_ASSIGN_OR_RETURN(model::StepRunner runner, model::StepRunner::Make(model, setup));
  return Predictor{std::move(bare), std::move(tokenizer), std::move(runner)};
}

// Of one file within one context.
struct ContextBits {
  std::vector<double> window_bits;  // of the targets of each window
  double bits = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;

  double per_token() const { return bits / static_cast<double>(tokens); }
};

// Documents as one stream: each with what the tokenizer puts around a text, and EOS.
Result<std::vector<int32_t>> RunTogether(const text::Tokenizer& tokenizer,
                                         const std::vector<std::string_view>& documents) {
  std::vector<int32_t> ids;
  for (const std::string_view document : documents) {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                            tokenizer.Encode(document, {.parse_special = false}));
    ids.insert(ids.end(), more.begin(), more.end());
    if (tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  }
  return ids;
}

Result<ContextBits> BitsWithin(Predictor& predictor, std::span<const int32_t> ids, int64_t context,
                               int64_t longest, int64_t targets, const model::Windows& windows) {
  model::Decoder& model = *predictor.bare.loaded.model;
  FATHOM_ASSIGN_OR_RETURN(const model::RopeChoice rope, model.ChooseRope(context));
  ContextBits sums;
  for (auto end = static_cast<size_t>(longest); end <= ids.size();
       end += static_cast<size_t>(windows.stride)) {
    const std::span<const int32_t> window =
        ids.subspan(end - static_cast<size_t>(context), static_cast<size_t>(context));
    FATHOM_ASSIGN_OR_RETURN(
        const std::vector<double> bits,
        model::WindowBits(predictor.runner, model.vocab_size(), window, context - targets, rope.row,
                          windows.chunk, *predictor.bare.pool));
    double window_bits = 0;
    const std::span<const int32_t> tokens = window.last(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      if (predictor.tokenizer.IsSpecial(tokens[i])) continue;  // the seams between documents
      window_bits += bits[i];
      ++sums.tokens;
      sums.bytes += static_cast<int64_t>(predictor.tokenizer.TokenBytes(tokens[i]).size());
    }
    sums.window_bits.push_back(window_bits);
    sums.bits += window_bits;
  }
  return sums;
}

// Of the difference of two means of bits per token, from its spread over the windows.
double StandardError(const ContextBits& a, const ContextBits& b) {
  const auto n = static_cast<double>(a.window_bits.size());
  if (n < 2) return 0;
  const double mean = (a.bits - b.bits) / n;
  double squares = 0;
  for (size_t i = 0; i < a.window_bits.size(); ++i) {
    const double d = a.window_bits[i] - b.window_bits[i] - mean;
    squares += d * d;
  }
  return std::sqrt(squares / (n - 1) * n) / static_cast<double>(a.tokens);
}

}  // namespace

Result<int> BitsPerByte(const ModelOptions& model_options, const TextOptions& text,
                        const std::string& json_path) {
  const model::Windows& windows = text.windows;
  FATHOM_ASSIGN_OR_RETURN(Predictor predictor,
                          MakePredictor(model_options, "--window", windows.window));
  model::Decoder& model = *predictor.bare.loaded.model;
  FATHOM_ASSIGN_OR_RETURN(const model::RopeChoice rope, model.ChooseRope(windows.window));
  fmt::print("{:<40} {:>9} {:>10} {:>10} {:>10} {:>9}\n", "text", "documents", "bytes", "tokens",
             "bits/byte", "time");
  ordered_json json_rows = ordered_json::array();
  for (const std::string& path : text.files) {
    FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    const std::vector<std::string_view> documents = Documents(file.text());
    const int64_t start = NowNs();
    double bits = 0;
    size_t bytes = 0, tokens = 0, done = 0;
    for (const std::string_view document : documents) {
      FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                              predictor.tokenizer.Encode(document, {.parse_special = false}));
      FATHOM_ASSIGN_OR_RETURN(const std::vector<double> token_bits,
                              model::TokenBits(predictor.runner, model.vocab_size(), ids, rope.row,
                                               windows, *predictor.bare.pool));
      for (const double b : token_bits) bits += b;
      bytes += document.size();
      tokens += token_bits.size();
      ++done;
      if (IsTerminal(STDERR_FILENO)) {
        fmt::print(stderr, "\r{}: {} of {} documents, {:.4f} bits/byte", path, done,
                   documents.size(), bits / static_cast<double>(bytes));
      }
    }
    if (bytes == 0) return Err(Code::kInvalidArgument, "{}: holds no text", path);
    if (IsTerminal(STDERR_FILENO)) fmt::print(stderr, "\r\033[K");
    const double per_byte = bits / static_cast<double>(bytes);
    fmt::print("{:<40} {:>9} {:>10} {:>10} {:>10.4f} {:>9}\n", path, documents.size(), bytes,
               tokens, per_byte, HumanNs(NowNs() - start));
    json_rows.push_back({{"text", path},
                         {"documents", documents.size()},
                         {"bytes", bytes},
                         {"tokens", tokens},
                         {"bits", bits},
                         {"bits_per_byte", per_byte}});
  }
  if (!json_path.empty()) {
    const ordered_json json = {{"schema", "fathom.bench_text/1"}, {"model", model.name()},
                               {"dtype", model_options.dtype},    {"window_tokens", windows.window},
                               {"stride_tokens", windows.stride}, {"texts", json_rows}};
    FATHOM_TRY(WriteFile(json_path, json.dump(2) + "\n"));
  }
  return kExitDone;
}

Result<int> BitsByContext(const ModelOptions& model_options, const TextOptions& text,
                          const std::string& json_path) {
  const auto [shortest, longest] = std::minmax_element(text.contexts.begin(), text.contexts.end());
  const int64_t targets = *shortest / 4;
  if (targets < 1 || text.windows.stride < targets) {
    return Err(Code::kInvalidArgument,
               "--context {} --stride {}: expected at least 4 tokens of context, and a stride of a "
               "quarter of the shortest at least",
               fmt::join(text.contexts, ","), text.windows.stride);
  }
  FATHOM_ASSIGN_OR_RETURN(Predictor predictor, MakePredictor(model_options, "--context", *longest));
  fmt::print("{:<40} {:>8} {:>8} {:>10} {:>10} {:>10}  change of bits/token\n", "text", "context",
             "targets", "bits/byte", "bits/token", "perplexity");
  ordered_json json_rows = ordered_json::array();
  for (const std::string& path : text.files) {
    FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            RunTogether(predictor.tokenizer, Documents(file.text())));
    if (static_cast<int64_t>(ids.size()) < *longest) {
      return Err(Code::kInvalidArgument, "{}: expected at least {} tokens (--context), found {}",
                 path, *longest, ids.size());
    }
    std::optional<ContextBits> first;
    for (const int64_t context : text.contexts) {
      FATHOM_ASSIGN_OR_RETURN(const ContextBits sums,
                              BitsWithin(predictor, ids, context, *longest, targets, text.windows));
      if (sums.tokens == 0) return Err(Code::kInvalidArgument, "{}: holds no text", path);
      const double per_byte = sums.bits / static_cast<double>(sums.bytes);
      const double perplexity = std::exp2(sums.per_token());
      fmt::print("{:<40} {:>8} {:>8} {:>10.4f} {:>10.4f} {:>10.3f}", path, context, sums.tokens,
                 per_byte, sums.per_token(), perplexity);
      ordered_json row = {{"text", path},
                          {"context_tokens", context},
                          {"windows", sums.window_bits.size()},
                          {"target_tokens", sums.tokens},
                          {"target_bytes", sums.bytes},
                          {"bits_per_byte", per_byte},
                          {"bits_per_token", sums.per_token()},
                          {"perplexity", perplexity}};
      if (first) {
        const double change = sums.per_token() - first->per_token();
        const double error = StandardError(sums, *first);
        fmt::print("  {:+.4f} (standard error {:.4f})", change, error);
        row["bits_per_token_change"] = change;
        row["standard_error"] = error;
      } else {
        first = sums;
      }
      fmt::print("\n");
      json_rows.push_back(std::move(row));
    }
  }
  if (!json_path.empty()) {
    const ordered_json json = {{"schema", "fathom.bench_context/1"},
                               {"model", predictor.bare.loaded.model->name()},
                               {"dtype", model_options.dtype},
                               {"stride_tokens", text.windows.stride},
                               {"rows", json_rows}};
    FATHOM_TRY(WriteFile(json_path, json.dump(2) + "\n"));
  }
  return kExitDone;
}

}  // namespace fathom::cli
