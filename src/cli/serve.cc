// fathom serve [MODEL]: an OpenAI-compatible server that says where each millisecond went.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/strings.h"
#include "cli/fields.h"
#include "cli/model_options.h"
#include "event/ring.h"
#include "observe/ledger.h"
#include "observe/metrics.h"
#include "observe/recorder.h"
#include "observe/trace_writer.h"
#include "server/server.h"

namespace fathom::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string served_model_name;
  std::vector<std::string> api_key;
  std::string api_key_file;
  int32_t max_running = 256;
  int32_t max_queue = 4096;
  int32_t token_budget = 512;
  int32_t max_prompt_tokens_per_step = 256;
  std::string max_body = "8M";
  std::string max_header = "16K";
  int32_t max_connections = 4096;
  int32_t idle_ms = 75000;
  int32_t header_ms = 10000;
  int32_t body_ms = 30000;
  int32_t write_ms = 60000;
  int32_t drain_s = 30;
  std::string cors_allow_origin;
  std::string metrics_compat;
  std::string trace;
  std::string trace_max = "1G";
  bool events = true;
  std::string log_level = "info";
};

template <class Visitor>
void VisitFields(Visitor& visit, ServeOptions& o) {
  visit("host", o.host, "Address to listen on; 0.0.0.0 for every interface");
  visit("port", o.port, "TCP port; 0 picks a free one and prints it");
  visit("served-model-name", o.served_model_name, "Name that clients use; empty: the directory's");
  visit("api-key", o.api_key, "Key that clients must send; may be repeated (see --api-key-file)");
  visit("api-key-file", o.api_key_file, "File with a key a line, which a process list cannot show");
  visit("max-running", o.max_running, "Sequences in a step at most");
  visit("max-queue", o.max_queue, "Waiting requests; one more is answered with 429");
  visit("token-budget", o.token_budget, "Tokens of one step, prompts and generation");
  visit("max-prompt-tokens-per-step", o.max_prompt_tokens_per_step,
        "Of it for prompts while others generate: less is smoother, more is faster to the first "
        "token");
  visit("max-body", o.max_body, "Largest request body, e.g. 8M; more is answered with 413");
  visit("max-header", o.max_header, "Largest request header; more is answered with 431");
  visit("max-connections", o.max_connections, "Connections; one more is answered with 503");
  visit("idle-ms", o.idle_ms, "How long a connection may wait for its next request");
  visit("header-ms", o.header_ms, "How long a request header may take to arrive");
  visit("body-ms", o.body_ms, "How long a request body may take to arrive");
  visit("write-ms", o.write_ms, "How long a client may take to accept what is written");
  visit("drain-s", o.drain_s, "After SIGTERM: seconds that admitted requests may go on");
  visit("cors-allow-origin", o.cors_allow_origin,
        "Origin that browsers may call from; empty: none");
  visit("metrics-compat", o.metrics_compat,
        "Export metrics under another engine's names too: vllm, or empty");
  visit("trace", o.trace, "Write a Chrome trace that Perfetto opens");
  visit("trace-max", o.trace_max, "Size at which the trace ends, e.g. 1G");
  visit("events", o.events,
        "Record where time goes; without, no ledgers and traces, and latency metrics stay empty");
  visit("log-level", o.log_level, "debug, info (a line a request), warn, error or off");
}

Result<std::vector<std::string>> ApiKeys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_key;
  if (!options.api_key_file.empty()) {
    std::ifstream file(options.api_key_file);
    if (!file) {
      return Err(Code::kInvalidArgument, "--api-key-file {}: cannot be read", options.api_key_file);
    }
    std::string line;
    while (std::getline(file, line)) {
      if (const std::string_view key = Trim(line); !key.empty()) keys.emplace_back(key);
    }
    if (keys.size() == options.api_key.size()) {
      return Err(Code::kInvalidArgument, "--api-key-file {}: holds no key", options.api_key_file);
    }
  }
  for (const std::string& key : keys) {
    if (key.empty()) return Err(Code::kInvalidArgument, "--api-key: a key must not be empty");
  }
  return keys;
}

Result<uint64_t> Bytes(const std::string& text, const char* flag) {
  auto bytes = ParseBytes(text);
  if (!bytes) return tl::unexpected(WithContext(bytes.error(), flag));
  return *bytes;
}

Status SetLogLevel(const std::string& name) {
  const auto level = spdlog::level::from_str(name);
  if (level == spdlog::level::off && name != "off") {
    return Err(Code::kInvalidArgument, "--log-level {}: expected debug, info, warn, error or off",
               name);
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("fathom"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(level);
  return {};
}

Result<server::ServerOptions> ToServerOptions(const ServeOptions& options) {
  server::ServerOptions out;
  out.host = options.host;
  out.port = options.port;
  FATHOM_ASSIGN_OR_RETURN(out.limits.max_body_bytes, Bytes(options.max_body, "--max-body"));
  FATHOM_ASSIGN_OR_RETURN(out.limits.max_header_bytes, Bytes(options.max_header, "--max-header"));
  out.limits.max_connections = options.max_connections;
  out.limits.idle_ms = options.idle_ms;
  out.limits.header_ms = options.header_ms;
  out.limits.body_ms = options.body_ms;
  out.limits.write_ms = options.write_ms;
  FATHOM_ASSIGN_OR_RETURN(out.api.api_keys, ApiKeys(options));
  out.api.cors_allow_origin = options.cors_allow_origin;
  out.drain_s = options.drain_s;
  const std::pair<const char*, int32_t> positive[] = {
      {"--max-connections", options.max_connections},
      {"--idle-ms", options.idle_ms},
      {"--header-ms", options.header_ms},
      {"--body-ms", options.body_ms},
      {"--write-ms", options.write_ms},
  };
  for (const auto& [flag, value] : positive) {
    if (value < 1) return Err(Code::kInvalidArgument, "{} {}: expected at least 1", flag, value);
  }
  if (options.drain_s < 0) {
    return Err(Code::kInvalidArgument, "--drain-s {}: expected 0 or more", options.drain_s);
  }
  return out;
}

observe::EngineGauges ReadGauges(const session::Session& session) {
  const engine::EngineStats stats = session.stats();
  return {.running = stats.running,
          .waiting = stats.waiting,
          .pages_total = stats.pages_total,
          .pages_free = stats.pages_free,
          .pages_cached = stats.pages_cached,
          .prefix_queries_tokens = stats.prefix_queries_tokens,
          .prefix_hits_tokens = stats.prefix_hits_tokens,
          .preemptions = stats.preemptions,
          .prompt_tokens = stats.prompt_tokens,
          .generated_tokens = stats.generated_tokens,
          .steps = stats.steps,
          .healthy = stats.healthy};
}

// A connection is a file descriptor, and the usual soft limit is 1024 of them.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
  }
}

Result<int> Serve(const ServeOptions& options) {
  FATHOM_TRY(SetLogLevel(options.log_level));
  RaiseFileLimit();
  if (!options.metrics_compat.empty() && options.metrics_compat != "vllm") {
    return Err(Code::kInvalidArgument, "--metrics-compat {}: expected vllm",
               options.metrics_compat);
  }
  FATHOM_ASSIGN_OR_RETURN(const server::ServerOptions server_options, ToServerOptions(options));
  FATHOM_ASSIGN_OR_RETURN(const std::string directory,
                          ModelDirectory(options.model.model, kShippedModel));
  FATHOM_ASSIGN_OR_RETURN(session::LoadOptions load, ToLoadOptions(options.model));
  FATHOM_ASSIGN_OR_RETURN(const uint64_t trace_max, Bytes(options.trace_max, "--trace-max"));
  std::unique_ptr<observe::TraceWriter> trace;
  if (!options.trace.empty()) {
    if (!options.events)
      return Err(Code::kInvalidArgument, "--trace needs events: drop --no-events");
    FATHOM_ASSIGN_OR_RETURN(trace,
                            observe::TraceWriter::Create(options.trace, "fathom serve", trace_max));
  }

  event::Ring ring(1 << 17);
  const event::Sink sink = options.events ? event::Sink(&ring) : event::Sink();
  load.sink = sink;
  load.name = options.served_model_name;
  load.engine.max_running = options.max_running;
  load.engine.max_queue = options.max_queue;
  load.engine.token_budget = options.token_budget;
  load.engine.max_prompt_tokens_per_step = options.max_prompt_tokens_per_step;
  load.model.on_plan = [](const cost::MemoryPlan& plan) { fmt::print(stderr, "{}", plan.Table()); };
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<session::LoadedSession> loaded,
                          session::LoadSession(directory, std::move(load)));
  session::Session& session = loaded->session();

  observe::MetricsOptions metrics_options;
  metrics_options.model_name = session.model().name;
  metrics_options.max_context_tokens = session.model().max_context_tokens;
  metrics_options.vllm_names = options.metrics_compat == "vllm";
  metrics_options.cache_config = {
      {"block_size", std::to_string(options.model.page_tokens)},
      {"cache_dtype", options.model.kv_dtype},
      {"enable_prefix_caching", options.model.prefix_cache ? "True" : "False"},
      {"num_gpu_blocks", std::to_string(loaded->memory().num_pages)}};
  observe::Metrics metrics(metrics_options, [&session] { return ReadGauges(session); });
  observe::LedgerOptions ledger_options;
  ledger_options.on_settled = [&metrics](const observe::RequestLedger& ledger) {
    metrics.ObserveLedger(ledger);
  };
  observe::Ledger ledger(ledger_options);
  std::vector<observe::Consumer*> consumers = {&ledger, &metrics};
  if (trace != nullptr) consumers.push_back(trace.get());
  std::optional<observe::Recorder> recorder;
  if (options.events) recorder.emplace(&ring, consumers);

  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<server::Server> server,
                          server::Server::Create(server_options, session,
                                                 {.sink = sink,
                                                  .recorder = options.events ? &*recorder : nullptr,
                                                  .ledger = options.events ? &ledger : nullptr,
                                                  .metrics = &metrics}));
  // Scripts wait for this line, whatever the log level.
  fmt::print(stderr, "serving {} on http://{}:{} ({} threads, {}, context {} tokens, {})\n",
             session.model().name, options.host, server->port(), loaded->num_threads(),
             loaded->cpu_isa(), session.model().max_context_tokens,
             server_options.api.api_keys.empty() ? "no API key" : "API key required");
  server->Run();
  if (trace != nullptr && !trace->stopped().empty()) {
    spdlog::warn("{}: the trace ends early: {}", options.trace, trace->stopped());
  }
  return kExitDone;
}

}  // namespace

void AddServe(Commands& commands) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* app = commands.Add(
      "serve", "OpenAI-compatible server with /metrics, /health and a latency ledger a request",
      [options] { return Serve(*options); });
  BindModelOptions(*app, options->model);
  BindFields(*app, *options);
}

}  // namespace fathom::cli
