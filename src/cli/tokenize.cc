// fathom tokenize [MODEL] [FILE]: the tokens of a text, as the model sees them.
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/terminal.h"
#include "text/tokenizer.h"

namespace fathom::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string file = "-";
  std::optional<std::string> text;
  std::string json;
  bool bos = false;
  bool no_special = false;
  bool ids = false;
};

// A token's bytes on one line: control characters, quotes and parts of characters as escapes.
std::string Shown(std::string_view bytes) {
  // JSON's own escapes, which leave valid UTF-8 readable; a part of a character is shown in hex.
  try {
    return nlohmann::json(bytes).dump();
  } catch (const nlohmann::json::exception&) {
    std::string hex;
    for (const char c : bytes) hex += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    return '"' + hex + '"';
  }
}

Result<std::string> Input(const TokenizeOptions& options) {
  if (options.text) return *options.text;
  if (options.file == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(options.file));
  return std::string(file.text());
}

Status WriteJson(const std::string& path, const text::Tokenizer& tokenizer, size_t num_bytes,
                 const std::vector<int32_t>& ids) {
  nlohmann::json tokens = nlohmann::json::array();
  for (const int32_t id : ids) {
    std::vector<int> bytes;
    for (const char c : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(c));
    tokens.push_back({{"id", id}, {"bytes", bytes}, {"special", tokenizer.IsSpecial(id)}});
  }
  const std::string text =
      nlohmann::json{{"schema", "fathom.tokens/1"}, {"bytes", num_bytes}, {"tokens", tokens}}
          .dump() +
      "\n";
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Err(Code::kInvalidArgument, "--json {}: cannot be written", path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file == stdout ? std::fflush(file) == 0 : std::fclose(file) == 0;
  if (!written || !closed)
    return Err(Code::kResourceExhausted, "--json {}: cannot be written", path);
  return {};
}

Result<int> Tokenize(const TokenizeOptions& options) {
  std::string directory = options.model;
  if (directory.empty()) {
    FATHOM_ASSIGN_OR_RETURN(directory, ModelDirectory("", kShippedModel));
  }
  FATHOM_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::LoadModel(directory));
  FATHOM_ASSIGN_OR_RETURN(const std::string input, Input(options));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          tokenizer.Encode(input, {.add_special_tokens = options.bos,
                                                   .parse_special = !options.no_special}));
  if (!options.json.empty()) {
    FATHOM_TRY(WriteJson(options.json, tokenizer, input.size(), ids));
    return kExitDone;
  }
  if (options.ids) {
    fmt::print("{}\n", fmt::join(ids, " "));
    return kExitDone;
  }
  const Style style = StyleFor(STDOUT_FILENO);
  for (const int32_t id : ids) {
    fmt::print("{:>8}  {}{}{}\n", id, tokenizer.IsSpecial(id) ? style.yellow : "",
               Shown(tokenizer.TokenBytes(id)), style.reset);
  }
  fmt::print(
      "{}{} tokens, {} bytes, {:.2f} bytes a token{}\n", style.dim, ids.size(), input.size(),
      ids.empty() ? 0.0 : static_cast<double>(input.size()) / static_cast<double>(ids.size()),
      style.reset);
  return kExitDone;
}

}  // namespace

void AddTokenize(Commands& commands) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* app = commands.Add("tokenize", "Prints the tokens of a text as a model sees them",
                               [options] { return Tokenize(*options); });
  app->add_option("model", options->model,
                  "Folder with tokenizer.json; without it the shipped tiny model");
  CLI::Option* file = app->add_option("file", options->file, "The text; - reads standard input")
                          ->capture_default_str();
  app->add_option("--text", options->text, "The text itself")->excludes(file);
  app->add_flag("--bos", options->bos, "Add what the model puts around a text (BOS)");
  app->add_flag("--no-special", options->no_special, "Control tokens in the text are text");
  CLI::Option* ids = app->add_flag("--ids", options->ids, "Print the ids only, on one line");
  app->add_option("--json", options->json, "Write JSON to a file (- is standard output)")
      ->excludes(ids);
}

}  // namespace fathom::cli
