// fathom bench serve: a load test of any OpenAI-compatible server.
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <random>

#include "base/http_get.h"
#include "base/mapped_file.h"
#include "base/strings.h"
#include "base/write_file.h"
#include "cli/command.h"
#include "cli/fields.h"
#include "cli/terminal.h"
#include "server/load_generator.h"
#include "server/load_report.h"

namespace fathom::cli {
namespace {

struct BenchServeOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model;
  std::string endpoint = "completions";
  std::string api_key;
  int32_t num_prompts = 100;
  std::string request_rate = "inf";
  double burstiness = 1.0;
  int32_t max_concurrency = 0;
  int32_t input_len = 256;
  int32_t output_len = 64;
  std::string dataset;
  uint64_t seed = 0;
  bool ignore_eos = true;
  std::optional<double> temperature;
  std::vector<std::string> goodput;
  int32_t timeout_s = 600;
  std::string json;
};

template <class Visitor>
void VisitFields(Visitor& visit, BenchServeOptions& o) {
  visit("url", o.url, "Server to load, without /v1");
  visit("model", o.model, "Model to ask for; empty: the first that the server lists");
  visit("endpoint", o.endpoint, "completions or chat");
  visit("api-key", o.api_key, "Key to send");
  visit("num-prompts", o.num_prompts, "Requests to send");
  visit("request-rate", o.request_rate, "Requests a second; inf: all at once");
  visit("burstiness", o.burstiness, "Shape of the gamma pauses: 1 is Poisson, less is burstier");
  visit("max-concurrency", o.max_concurrency, "Requests under way at most; 0: no limit");
  visit("input-len", o.input_len, "Tokens of a prompt made of random words, about");
  visit("output-len", o.output_len, "max_tokens of each request");
  visit("dataset", o.dataset,
        "Prompts from a file instead: a JSON object a line with \"prompt\" or \"messages\", and "
        "\"max_tokens\" if it differs from --output-len");
  visit("seed", o.seed, "Of prompts, arrivals and the choice from the dataset");
  visit("ignore-eos", o.ignore_eos, "Ask for answers of exactly max_tokens");
  visit("goodput", o.goodput,
        "Limits of a good request, NAME:MS with ttft, tpot or e2el; may be repeated");
  visit("timeout-s", o.timeout_s, "How long a request may take");
  visit("json", o.json, "Write the report as JSON; - for stdout");
}

// Common words: about one token each in the vocabularies of today.
constexpr std::string_view kWords[] = {
    "time",   "water",  "house", "light",   "people", "small", "great",   "under",
    "world",  "number", "sound", "place",   "night",  "river", "letter",  "mother",
    "answer", "study",  "learn", "plant",   "cover",  "four",  "between", "state",
    "keep",   "never",  "last",  "thought", "city",   "tree",  "cross",   "farm",
    "hard",   "start",  "story", "far",     "sea",    "draw",  "left",    "late",
};

std::string RandomText(size_t words, std::mt19937_64& random) {
  std::string out;
  for (size_t i = 0; i < words; ++i) {
    if (i > 0) out += ' ';
    out += kWords[random() % std::size(kWords)];
  }
  return out;
}

Result<double> Number(std::string_view text, std::string_view flag) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0)) {
    return Err(Code::kInvalidArgument, "{} '{}': expected a positive number", flag, text);
  }
  return value;
}

Result<server::ServiceLevel> ParseGoodput(const std::vector<std::string>& limits) {
  server::ServiceLevel level;
  for (const std::string& limit : limits) {
    const auto parts = Split(limit, ':');
    if (parts.size() != 2) {
      return Err(Code::kInvalidArgument, "--goodput '{}': expected NAME:MS, e.g. ttft:500", limit);
    }
    FATHOM_ASSIGN_OR_RETURN(const double ms, Number(parts[1], "--goodput"));
    if (parts[0] == "ttft") {
      level.ttft_ms = ms;
    } else if (parts[0] == "tpot") {
      level.tpot_ms = ms;
    } else if (parts[0] == "e2el") {
      level.e2el_ms = ms;
    } else {
      return Err(Code::kInvalidArgument, "--goodput '{}': expected ttft, tpot or e2el", parts[0]);
    }
  }
  return level;
}

Result<server::LoadTarget> ToTarget(const BenchServeOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const Url url, ParseUrl(options.url));
  if (options.endpoint != "completions" && options.endpoint != "chat") {
    return Err(Code::kInvalidArgument, "--endpoint {}: expected completions or chat",
               options.endpoint);
  }
  server::LoadTarget target;
  target.host = url.host;
  target.port = url.port;
  target.base_path = url.target == "/" ? "" : url.target;
  target.api_key = options.api_key;
  target.chat = options.endpoint == "chat";
  target.timeout_s = options.timeout_s;
  target.model = options.model;
  if (!target.model.empty()) return target;
  const Result<nlohmann::json> models = server::Fetch(target, "GET", "/v1/models", "");
  if (!models && models.error().code == Code::kUnavailable) {
    return Err(Code::kUnavailable, "{}; fathom serve starts a server, --url names another",
               models.error().message);
  }
  if (!models) return tl::unexpected(models.error());
  const nlohmann::json id = models->value("/data/0/id"_json_pointer, nlohmann::json());
  if (!id.is_string()) {
    return Err(Code::kDataLoss, "{}/v1/models lists no model; name one with --model", options.url);
  }
  target.model = id.get<std::string>();
  return target;
}

nlohmann::json PromptOf(const server::LoadTarget& target, std::string text) {
  if (!target.chat) return text;
  return nlohmann::json::array({{{"role", "user"}, {"content", std::move(text)}}});
}

// How many random words make input_len tokens here: the server counts two prompts of known size, so
// that what a template adds drops out.
Result<size_t> WordsFor(const server::LoadTarget& target, int32_t input_len) {
  std::mt19937_64 random(1);
  double tokens[2];
  constexpr size_t kProbe[2] = {8, 40};
  for (int i = 0; i < 2; ++i) {
    const nlohmann::json body = {
        {"model", target.model},
        {target.chat ? "messages" : "prompt", PromptOf(target, RandomText(kProbe[i], random))},
        {"max_tokens", 1}};
    FATHOM_ASSIGN_OR_RETURN(
        const nlohmann::json answer,
        server::Fetch(target, "POST", target.chat ? "/v1/chat/completions" : "/v1/completions",
                      body.dump()));
    const auto count = answer.value("/usage/prompt_tokens"_json_pointer, nlohmann::json());
    if (!count.is_number()) return Err(Code::kDataLoss, "the server's answers carry no usage");
    tokens[i] = count.get<double>();
  }
  const double per_word =
      std::max(0.1, (tokens[1] - tokens[0]) / static_cast<double>(kProbe[1] - kProbe[0]));
  const double fixed = tokens[0] - per_word * static_cast<double>(kProbe[0]);
  return static_cast<size_t>(std::max(1.0, std::round((input_len - fixed) / per_word)));
}

Result<std::vector<server::LoadRequest>> FromDataset(const BenchServeOptions& options,
                                                     const server::LoadTarget& target) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(options.dataset));
  std::vector<server::LoadRequest> rows;
  size_t number = 0;
  for (const std::string_view line : Split(file.text(), '\n')) {
    ++number;
    if (Trim(line).empty()) continue;
    auto bad = [&](std::string_view what) {
      return Err(Code::kInvalidArgument, "{}:{}: {}", options.dataset, number, what);
    };
    nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object()) return bad("expected a JSON object");
    server::LoadRequest request{.max_tokens = options.output_len};
    if (row.contains("messages")) {
      if (!target.chat) return bad("\"messages\" need --endpoint chat");
      request.prompt = row["messages"];
    } else if (row.contains("prompt") && row["prompt"].is_string()) {
      request.prompt = PromptOf(target, row["prompt"].get<std::string>());
    } else {
      return bad("expected \"prompt\" (a string) or \"messages\"");
    }
    if (row.contains("max_tokens")) {
      if (!row["max_tokens"].is_number_integer()) return bad("\"max_tokens\" is not an integer");
      request.max_tokens = row["max_tokens"].get<int32_t>();
    }
    rows.push_back(std::move(request));
  }
  if (rows.empty()) return Err(Code::kInvalidArgument, "{}: holds no prompt", options.dataset);
  std::mt19937_64 random(options.seed);
  std::shuffle(rows.begin(), rows.end(), random);
  std::vector<server::LoadRequest> out;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    out.push_back(rows[static_cast<size_t>(i) % rows.size()]);
  }
  return out;
}

Result<std::vector<server::LoadRequest>> MakeRequests(const BenchServeOptions& options,
                                                      const server::LoadTarget& target) {
  if (!options.dataset.empty()) return FromDataset(options, target);
  FATHOM_ASSIGN_OR_RETURN(const size_t words, WordsFor(target, options.input_len));
  std::mt19937_64 random(options.seed);
  std::vector<server::LoadRequest> out;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    out.push_back(
        {.prompt = PromptOf(target, RandomText(words, random)), .max_tokens = options.output_len});
  }
  return out;
}

Result<int> BenchServe(const BenchServeOptions& options) {
  const std::pair<const char*, int32_t> positive[] = {{"--num-prompts", options.num_prompts},
                                                      {"--input-len", options.input_len},
                                                      {"--output-len", options.output_len},
                                                      {"--timeout-s", options.timeout_s}};
  for (const auto& [flag, value] : positive) {
    if (value < 1) return Err(Code::kInvalidArgument, "{} {}: expected at least 1", flag, value);
  }
  if (options.max_concurrency < 0 || !(options.burstiness > 0)) {
    return Err(Code::kInvalidArgument,
               "--max-concurrency {}: expected 0 or more; --burstiness {}: expected more than 0",
               options.max_concurrency, options.burstiness);
  }
  server::LoadShape shape{.burstiness = options.burstiness,
                          .max_concurrency = options.max_concurrency,
                          .seed = options.seed,
                          .ignore_eos = options.ignore_eos};
  if (options.request_rate != "inf") {
    FATHOM_ASSIGN_OR_RETURN(shape.request_rate, Number(options.request_rate, "--request-rate"));
  }
  if (options.temperature) shape.extra["temperature"] = *options.temperature;
  FATHOM_ASSIGN_OR_RETURN(const server::ServiceLevel goodput, ParseGoodput(options.goodput));
  FATHOM_ASSIGN_OR_RETURN(const server::LoadTarget target, ToTarget(options));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<server::LoadRequest> requests,
                          MakeRequests(options, target));

  const bool terminal = IsTerminal(STDERR_FILENO);
  FATHOM_ASSIGN_OR_RETURN(
      const server::LoadResult result,
      server::RunLoad(target, requests, shape, [terminal](size_t done, size_t count) {
        if (terminal) fmt::print(stderr, "\r\033[K{} of {} answered", done, count);
      }));
  if (terminal) fmt::print(stderr, "\r\033[K");
  nlohmann::ordered_json report = server::LoadReport(result.outcomes, result.duration_ns,
                                                     result.max_concurrent_requests, goodput);
  report["model"] = target.model;
  report["options"] = FieldsToJson(options);
  report["options"].erase("api-key");
  if (options.json != "-") fmt::print("{}", server::LoadTable(report));
  if (!options.json.empty()) FATHOM_TRY(WriteFile(options.json, report.dump(1) + "\n"));
  if (report["completed"] == 0) {
    return Err(Code::kUnavailable, "no request was answered: {}",
               report["errors"][0]["error"].get<std::string>());
  }
  return kExitDone;
}

}  // namespace

void AddBenchServe(Commands& commands) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* app = commands.Group("bench", "Benchmarks")
                      .Add("serve", "Loads any OpenAI-compatible server and reports latencies",
                           [options] { return BenchServe(*options); });
  BindFields(*app, *options);
  app->add_option("--temperature", options->temperature, "Temperature of each request");
}

}  // namespace fathom::cli
