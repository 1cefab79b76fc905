#include "server/api.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/strings.h"
#include "observe/ledger_report.h"

namespace fathom::server {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using nlohmann::ordered_json;

constexpr size_t kKnownRequests = 4096;
constexpr int kClientClosed = 499;        // for logs and metrics: nobody is there to read it
constexpr std::string_view kId = "{id}";  // in the path of a route

// What stands in a path where the route has {id}; nothing when the path is not the route's.
std::optional<std::string_view> IdIn(std::string_view path, std::string_view route) {
  const size_t at = route.find(kId);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = route.substr(0, at);
  const std::string_view after = route.substr(at + kId.size());
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
      !path.ends_with(after)) {
    return std::nullopt;
  }
  return path.substr(before.size(), path.size() - before.size() - after.size());
}

// The time that a comparison takes tells nothing about where the texts differ.
bool SameSecret(std::string_view given, std::string_view secret) {
  unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret.empty() ? 0 : secret[i % secret.size()]);
  }
  return difference == 0;
}

std::string ServerSentEvent(std::string_view data) { return fmt::format("data: {}\n\n", data); }

// Runs `work` on another executor and comes back with its result.
template <class Work>
awaitable<std::invoke_result_t<Work&>> RunOn(asio::any_io_executor executor, Work& work) {
  auto body = [](Work& w) -> awaitable<std::invoke_result_t<Work&>> { co_return w(); };
  co_return co_await asio::co_spawn(executor, body(work), asio::use_awaitable);
}

}  // namespace

// Lets a coroutine of the I/O thread sleep until any thread wakes it.
class Api::WakeUp : public std::enable_shared_from_this<WakeUp> {
 public:
  explicit WakeUp(const asio::any_io_executor& executor) : timer_(executor) {}

  void Signal() {  // any thread
    asio::post(timer_.get_executor(), [self = shared_from_this()] {
      self->signalled_ = true;
      self->timer_.cancel();
    });
  }
  awaitable<void> Wait() {
    boost::system::error_code ignored;
    while (!signalled_) {
      timer_.expires_at(asio::steady_timer::time_point::max());
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    signalled_ = false;
  }

 private:
  asio::steady_timer timer_;
  bool signalled_ = false;
};

// One request being answered.
struct Api::Exchange {
  const HttpRequest& request;
  HttpResponder& responder;
  std::string id;  // X-Request-Id, given or made
  std::string_view route = "none";
  int status = 0;
  int64_t taken_ns = 0;  // by a worker
};

struct Api::Route {
  std::string_view path;
  std::string_view method;
  bool needs_key;
  awaitable<void> (Api::*handle)(Exchange&);
};

// What was submitted for one request. However it goes out of scope, its choices end.
struct Api::Generation {
  Api& api;
  std::string id;
  KnownRequest known;
  int32_t n = 1;
  OutputOptions output;
  ResponseText text;
  std::vector<std::string> echo;  // before each choice's text; empty: none
  std::shared_ptr<TokenQueue> queue;
  std::vector<ChoiceText> choices;  // [num_prompts * n]; streams keep only what usage needs
  std::vector<bool> announced;      // the choice's first chunk has been written
  int32_t finished = 0;
  bool gone = false;  // the client hung up

  void Take(TokenQueue::Item* item);
  // A stream's events for an item, before it is taken.
  std::string EventsOf(const TokenQueue::Item& item);

  ~Generation() {
    queue->Close();
    if (finished < known.choices) {
      for (int32_t k = 0; k < known.choices; ++k) {
        api.session_.Cancel(known.first_id + static_cast<uint64_t>(k));
      }
    }
    api.EmitAll(*this, {.start_ns = NowNs(), .kind = event::Kind::kResponded});
  }
};

void Api::Generation::Take(TokenQueue::Item* item) {
  ChoiceText& choice = choices[static_cast<size_t>(item->choice)];
  if (!output.stream) choice.Append(std::move(item->delta));
  if (item->finish) {
    choice.finish = item->finish;
    ++finished;
  }
}

std::string Api::Generation::EventsOf(const TokenQueue::Item& item) {
  std::string out;
  const auto index = static_cast<size_t>(item.choice);
  if (!announced[index]) {  // also of an answer without any text: the role
    session::TextDelta opening;
    if (!echo.empty()) opening.content = echo[index];
    out += ServerSentEvent(text.Delta(item.choice, opening, true));
    announced[index] = true;
  }
  const session::TextDelta& delta = item.delta;
  if (!delta.content.empty() || !delta.reasoning_content.empty() || !delta.tool_calls.empty() ||
      !delta.logprobs.empty()) {
    out += ServerSentEvent(text.Delta(item.choice, delta, false));
  }
  if (item.finish) {
    out += ServerSentEvent(item.finish->error ? ErrorBody(*item.finish->error)
                                              : text.Finished(item.choice, *item.finish));
  }
  return out;
}

Api::Api(ApiOptions options, session::Session& session, const Observers& observers)
    : options_(std::move(options)),
      session_(session),
      observers_(observers),
      limits_{.model = session.model().name,
              .vocab_size = session.model().vocab_size,
              .max_context_tokens = session.model().max_context_tokens,
              .has_chat_template = !session.model().template_family.empty(),
              .keeps_ledgers = observers.ledger != nullptr,
              .default_sampling = session.model().default_sampling},
      started_unix_s_(WallNowNs() / 1'000'000'000),
      workers_(static_cast<size_t>(options_.workers)),
      random_(std::random_device{}()) {}

const std::vector<Api::Route>& Api::Routes() {
  static const std::vector<Route> kRoutes = {
      {"/v1/chat/completions", "POST", true, &Api::Chat},
      {"/v1/completions", "POST", true, &Api::Complete},
      {"/v1/models", "GET", true, &Api::Models},
      {"/v1/models/{id}", "GET", true, &Api::ModelPage},
      {"/v1/requests/{id}/ledger", "GET", true, &Api::LedgerPage},
      {"/tokenize", "POST", true, &Api::Tokenize},
      {"/detokenize", "POST", true, &Api::Detokenize},
      {"/health", "GET", false, &Api::Health},
      {"/metrics", "GET", false, &Api::MetricsPage},
  };
  return kRoutes;
}

awaitable<void> Api::Handle(const HttpRequest& request, HttpResponder& responder) {
  struct InFlight {
    std::atomic<int32_t>& count;
    explicit InFlight(std::atomic<int32_t>& c) : count(c) { ++count; }
    ~InFlight() { --count; }
  } in_flight(in_flight_);
  Exchange exchange{.request = request, .responder = responder, .id = request.request_id};
  co_await Dispatch(exchange);
  const double seconds = static_cast<double>(NowNs() - request.arrived_ns) * 1e-9;
  observers_.metrics->ObserveHttp(exchange.route, request.method, exchange.status, seconds);
  const bool polled = exchange.route == "/health" || exchange.route == "/metrics";
  spdlog::log(polled ? spdlog::level::debug : spdlog::level::info, "{} {} {} {:.1f} ms {}",
              request.method, exchange.route, exchange.status, seconds * 1e3, exchange.id);
}

// About the form of the coroutines here: g++ 12 rejects braced temporaries inside co_await
// expressions and lays out a wrong frame for `if (co_await ...)`. Both are named first.
awaitable<void> Api::Dispatch(Exchange& exchange) {
  const ApiResult<const Route*> route = Admit(exchange);
  if (!route) {
    co_await ReplyError(exchange, route.error());
  } else if (*route == nullptr) {
    HttpResponse preflight = Preflight();
    co_await Reply(exchange, preflight);
  } else {
    awaitable<void> answer = (this->*(*route)->handle)(exchange);
    co_await std::move(answer);
  }
}

// The endpoint to call; null for a CORS preflight.
ApiResult<const Api::Route*> Api::Admit(Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  auto refuse = [](int status, std::string code, std::string message) {
    return tl::unexpected(
        ApiError{.status = status, .message = std::move(message), .code = std::move(code)});
  };
  const bool good_id = request.request_id.size() <= 128 &&
                       std::all_of(request.request_id.begin(), request.request_id.end(),
                                   [](char c) { return c > ' ' && c < 0x7f; });
  if (!good_id || exchange.id.empty()) exchange.id = NewRequestId();
  if (!good_id) {
    return refuse(400, "invalid_value",
                  "X-Request-Id: expected at most 128 visible ASCII characters");
  }

  const std::string_view path = request.path;
  const auto& routes = Routes();
  const auto route = std::find_if(routes.begin(), routes.end(), [&](const Route& r) {
    return r.path == path || IdIn(path, r.path).has_value();
  });
  if (route == routes.end()) {
    std::vector<std::string_view> known;
    for (const Route& r : routes) known.push_back(r.path);
    const std::string_view nearest = Nearest(path.substr(0, 64), known);
    return refuse(404, "not_found",
                  nearest.empty()
                      ? fmt::format("unknown path; the paths are {}", fmt::join(known, ", "))
                      : fmt::format("unknown path; did you mean {}?", nearest));
  }
  exchange.route = route->path;
  if (request.method == "OPTIONS" && !options_.cors_allow_origin.empty()) return nullptr;
  const bool head = request.method == "HEAD" && route->method == "GET";
  if (request.method != route->method && !head) {
    return refuse(405, "method_not_allowed",
                  fmt::format("{} takes {}, not {}", route->path, route->method,
                              request.method.substr(0, 16)));
  }
  if (route->needs_key) {
    if (auto error = Authorize(request)) return tl::unexpected(std::move(*error));
  }
  if (request.method == "POST") {
    const std::string_view type = Trim(Split(request.content_type, ';').front());
    if (type != "application/json") {
      return refuse(
          415, "unsupported_media_type",
          fmt::format("Content-Type: expected application/json, found '{}'", type.substr(0, 64)));
    }
  }
  return &*route;
}

HttpResponse Api::Preflight() {
  HttpResponse response{.status = 204};
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  response.headers.emplace_back("Access-Control-Allow-Headers",
                                "Authorization, Content-Type, X-Request-Id");
  return response;
}

std::optional<ApiError> Api::Authorize(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return std::nullopt;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view header = request.authorization;
  bool good = false;
  if (header.starts_with(kBearer)) {
    for (const std::string& key : options_.api_keys) {
      good |= SameSecret(header.substr(kBearer.size()), key);
    }
  }
  if (good) return std::nullopt;
  return ApiError{.status = 401,
                  .message = header.empty() ? "no API key: send 'Authorization: Bearer KEY'"
                                            : "the API key is not one of this server's",
                  .code = "invalid_api_key"};
}

// ---- endpoints that answer at once -------------------------------------------------------------

awaitable<void> Api::Health(Exchange& exchange) {
  const bool healthy = session_.stats().healthy;
  HttpResponse response;
  response.status = healthy && !draining_ ? 200 : 503;
  response.body = fmt::format(R"({{"status":"{}"}})", !healthy    ? "unhealthy"
                                                      : draining_ ? "draining"
                                                                  : "ok");
  co_await Reply(exchange, response);
}

awaitable<void> Api::MetricsPage(Exchange& exchange) {
  auto work = [this] { return observers_.metrics->Render(); };
  HttpResponse response;
  response.body = co_await RunOn(workers_.get_executor(), work);
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  co_await Reply(exchange, response);
}

awaitable<void> Api::Models(Exchange& exchange) {
  ApiResult<std::string> body = ModelsBody(session_.model(), started_unix_s_);
  co_await ReplyResult(exchange, body);
}

awaitable<void> Api::ModelPage(Exchange& exchange) {
  const std::string_view id = *IdIn(exchange.request.path, exchange.route);
  ApiResult<std::string> body = ModelBody(session_.model(), started_unix_s_);
  if (id != limits_.model) body = tl::unexpected(UnknownModel(id, limits_));
  co_await ReplyResult(exchange, body);
}

awaitable<void> Api::Tokenize(Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  auto work = [this, &request]() -> ApiResult<std::string> {
    auto parsed = ParseTokenizeRequest(request.body, limits_);
    if (!parsed) return tl::unexpected(parsed.error());
    auto tokens = parsed->chat ? session_.TokenizeChat(*parsed->chat)
                               : session_.Tokenize(*parsed->prompt, parsed->add_special_tokens);
    if (!tokens) return tl::unexpected(ToApiError(tokens.error()));
    std::optional<std::vector<std::string>> strs;
    if (parsed->return_token_strs) {
      strs.emplace();
      for (const int32_t token : *tokens) strs->push_back(session_.TokenBytes(token));
    }
    return TokenizeBody(*tokens, strs, limits_.max_context_tokens);
  };
  ApiResult<std::string> body = co_await RunOn(workers_.get_executor(), work);
  co_await ReplyResult(exchange, body);
}

awaitable<void> Api::Detokenize(Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  auto work = [this, &request]() -> ApiResult<std::string> {
    auto parsed = ParseDetokenizeRequest(request.body, limits_);
    if (!parsed) return tl::unexpected(parsed.error());
    auto text = session_.Detokenize(parsed->tokens);
    if (!text) return tl::unexpected(ToApiError(text.error()));
    return DetokenizeBody(*text);
  };
  ApiResult<std::string> body = co_await RunOn(workers_.get_executor(), work);
  co_await ReplyResult(exchange, body);
}

awaitable<void> Api::LedgerPage(Exchange& exchange) {
  const std::string_view id = *IdIn(exchange.request.path, exchange.route);
  std::string_view bare = id;  // both the request id and the response's id name a request
  for (const std::string_view prefix : {"chatcmpl-", "cmpl-"}) {
    if (bare.starts_with(prefix)) bare.remove_prefix(prefix.size());
  }
  std::optional<KnownRequest> known;
  {
    std::lock_guard lock(known_mutex_);
    if (const auto found = known_.find(std::string(bare)); found != known_.end()) {
      known = found->second;
    }
  }
  const std::string name(id);
  ordered_json ledger;
  if (known && limits_.keeps_ledgers) ledger = co_await LedgerOf(*known, name);
  ApiResult<std::string> body = Dump(ledger);
  if (ledger.is_null()) {
    body = tl::unexpected(ApiError{.status = 404,
                                   .message = limits_.keeps_ledgers
                                                  ? "no ledger of that request: it is unknown, or "
                                                    "so old that it is no longer kept"
                                                  : "no ledger: this server records no events "
                                                    "(--no-events)",
                                   .code = "not_found"});
  }
  co_await ReplyResult(exchange, body);
}

// One ledger, or an array with one a choice; null when none is known. What is not over is divided
// up to the moment of asking.
awaitable<ordered_json> Api::LedgerOf(const KnownRequest& request, const std::string& id) {
  const int64_t now_ns = NowNs();
  const auto wake = std::make_shared<WakeUp>(co_await asio::this_coro::executor);
  observers_.recorder->FlushThen([wake] { wake->Signal(); });
  co_await wake->Wait();
  auto work = [&] {
    ordered_json all = ordered_json::array();
    for (int32_t k = 0; k < request.choices; ++k) {
      const auto ledger =
          observers_.ledger->Find(request.first_id + static_cast<uint64_t>(k), now_ns);
      if (ledger) all.push_back(observe::LedgerJson(*ledger, id));
    }
    if (all.empty()) return ordered_json();
    return request.choices == 1 ? all[0] : all;
  };
  ordered_json ledger = co_await RunOn(workers_.get_executor(), work);
  co_return ledger;
}

// For the response itself; null when the client did not ask.
awaitable<ordered_json> Api::OwnLedger(const Generation& generation) {
  ordered_json ledger;
  if (!generation.output.ledger) co_return ledger;
  event::Event made = {.start_ns = NowNs(), .kind = event::Kind::kLedger};
  ledger = co_await LedgerOf(generation.known, generation.id);
  made.duration_ns = NowNs() - made.start_ns;
  EmitAll(generation, made);
  co_return ledger;
}

// ---- generation --------------------------------------------------------------------------------

awaitable<void> Api::Chat(Exchange& exchange) { co_await Generate(exchange, &Api::StartChat); }

awaitable<void> Api::Complete(Exchange& exchange) {
  co_await Generate(exchange, &Api::StartCompletion);
}

std::unique_ptr<Api::Generation> Api::Announce(const Exchange& exchange, ResponseKind kind,
                                               const OutputOptions& output, int32_t n,
                                               size_t prompts, std::shared_ptr<TokenQueue> queue) {
  const auto choices = static_cast<int32_t>(prompts) * n;
  const KnownRequest known = {next_id_.fetch_add(static_cast<uint64_t>(choices)), choices};
  {
    std::lock_guard lock(known_mutex_);
    if (known_.insert_or_assign(exchange.id, known).second) known_order_.push_back(exchange.id);
    if (known_order_.size() > kKnownRequests) {
      known_.erase(known_order_.front());
      known_order_.pop_front();
    }
  }
  const char* prefix = kind == ResponseKind::kChat ? "chatcmpl-" : "cmpl-";
  std::string id = prefix + exchange.id;
  ResponseText text(kind, id, limits_.model, WallNowNs() / 1'000'000'000, output);
  std::unique_ptr<Generation> generation(new Generation{.api = *this,
                                                        .id = std::move(id),
                                                        .known = known,
                                                        .n = n,
                                                        .output = output,
                                                        .text = std::move(text),
                                                        .queue = std::move(queue)});
  generation->queue->WakeAtEveryDelta(output.stream);
  generation->choices.resize(static_cast<size_t>(choices));
  generation->announced.resize(static_cast<size_t>(choices));
  const int64_t arrived_ns = exchange.request.arrived_ns;
  const size_t bytes = exchange.request.body.size();
  EmitAll(*generation,
          {.start_ns = arrived_ns, .value = bytes, .kind = event::Kind::kRequestArrived});
  EmitAll(*generation, {.start_ns = arrived_ns,
                        .duration_ns = exchange.taken_ns - arrived_ns,
                        .kind = event::Kind::kWaitForCpu});
  EmitAll(*generation, {.start_ns = exchange.taken_ns,
                        .duration_ns = NowNs() - exchange.taken_ns,
                        .value = bytes,
                        .kind = event::Kind::kParse});
  return generation;
}

ApiResult<std::unique_ptr<Api::Generation>> Api::StartChat(const Exchange& exchange,
                                                           std::shared_ptr<TokenQueue> queue) {
  auto request = ParseChatRequest(exchange.request.body, limits_);
  if (!request) return tl::unexpected(request.error());
  session::ChatParams& params = request->params;
  auto generation = Announce(exchange, ResponseKind::kChat, request->output, params.n, 1, queue);
  observers_.metrics->ObserveRequest(params.n, params.max_tokens);
  params.id = generation->known.first_id;
  if (request->timing.deadline_ms > 0) {
    params.deadline_ns = exchange.request.arrived_ns + request->timing.deadline_ms * 1'000'000;
  }
  if (Status status = session_.Chat(std::move(params), queue->Listener(0)); !status) {
    return tl::unexpected(ToApiError(status.error(), "messages"));
  }
  return generation;
}

ApiResult<std::unique_ptr<Api::Generation>> Api::StartCompletion(
    const Exchange& exchange, std::shared_ptr<TokenQueue> queue) {
  auto request = ParseCompletionRequest(exchange.request.body, limits_);
  if (!request) return tl::unexpected(request.error());
  const int32_t n = request->params.n;
  auto generation = Announce(exchange, ResponseKind::kCompletion, request->output, n,
                             request->prompts.size(), queue);
  observers_.metrics->ObserveRequest(n, request->params.max_tokens);
  if (request->timing.deadline_ms > 0) {
    request->params.deadline_ns =
        exchange.request.arrived_ns + request->timing.deadline_ms * 1'000'000;
  }
  for (size_t p = 0; p < request->prompts.size(); ++p) {
    session::CompletionParams params;
    static_cast<session::GenerationParams&>(params) = request->params;
    const auto first_choice = static_cast<int32_t>(p) * n;
    params.id = generation->known.first_id + static_cast<uint64_t>(first_choice);
    params.prompt = request->prompts[p];
    if (request->echo) {
      Result<std::string> text =
          std::holds_alternative<std::string>(request->prompts[p])
              ? std::get<std::string>(request->prompts[p])
              : session_.Detokenize(std::get<std::vector<int32_t>>(request->prompts[p]));
      if (!text) return tl::unexpected(ToApiError(text.error()));
      generation->echo.insert(generation->echo.end(), static_cast<size_t>(n), *text);
    }
    if (Status status = session_.Complete(std::move(params), queue->Listener(first_choice));
        !status) {
      return tl::unexpected(ToApiError(status.error(), "prompt"));
    }
  }
  return generation;
}

awaitable<void> Api::Generate(Exchange& exchange, Start start) {
  if (draining_) {
    const ApiError error =
        ToApiError({Code::kUnavailable, "the server is shutting down and takes no new requests"});
    co_await ReplyError(exchange, error);
    co_return;
  }
  const auto wake = std::make_shared<WakeUp>(co_await asio::this_coro::executor);
  const auto queue = std::make_shared<TokenQueue>([wake] { wake->Signal(); });
  auto work = [this, &exchange, start, queue] {
    exchange.taken_ns = NowNs();
    return (this->*start)(exchange, queue);
  };
  auto started = co_await RunOn(workers_.get_executor(), work);
  if (!started) {
    queue->Close();
    co_await ReplyError(exchange, started.error());
    co_return;
  }
  Generation& generation = **started;
  exchange.responder.OnClientGone([wake, &generation] {
    generation.gone = true;
    wake->Signal();
  });
  if (generation.output.stream) {
    co_await AnswerStream(exchange, generation, *wake);
  } else {
    co_await AnswerWhole(exchange, generation, *wake);
  }
}

awaitable<void> Api::AnswerWhole(Exchange& exchange, Generation& generation, WakeUp& wake) {
  while (generation.finished < generation.known.choices) {
    co_await wake.Wait();
    if (generation.gone) {
      exchange.status = kClientClosed;
      co_return;
    }
    for (TokenQueue::Item& item : generation.queue->TakeAll()) {
      generation.Take(&item);
      EmitWait(generation, item);
      if (item.finish && item.finish->error) {
        const ApiError error = *item.finish->error;
        co_await ReplyError(exchange, error);
        co_return;
      }
    }
  }
  const ordered_json ledger = co_await OwnLedger(generation);
  event::Event write = {.start_ns = NowNs(), .kind = event::Kind::kNetworkWrite};
  std::string body = generation.text.Whole(
      generation.choices, SumUsage(generation.choices, generation.n), generation.echo, ledger);
  write.value = body.size();
  HttpResponse response;
  response.body = std::move(body);
  co_await Reply(exchange, response);
  write.duration_ns = NowNs() - write.start_ns;
  EmitAll(generation, write);
}

awaitable<void> Api::AnswerStream(Exchange& exchange, Generation& generation, WakeUp& wake) {
  bool begun = false;
  bool taken = true;  // what was written so far
  std::string out;
  while (generation.finished < generation.known.choices) {
    co_await wake.Wait();
    if (generation.gone) {
      exchange.status = kClientClosed;
      co_return;
    }
    event::Event write = {.start_ns = NowNs(), .kind = event::Kind::kNetworkWrite};
    std::vector<int32_t> choices;  // that this write carries
    for (TokenQueue::Item& item : generation.queue->TakeAll()) {
      if (item.finish && item.finish->error && !begun && out.empty()) {
        const ApiError error = *item.finish->error;  // in time for a status line
        co_await ReplyError(exchange, error);
        co_return;
      }
      out += generation.EventsOf(item);
      generation.Take(&item);
      EmitWait(generation, item);
      if (std::find(choices.begin(), choices.end(), item.choice) == choices.end()) {
        choices.push_back(item.choice);
      }
    }
    if (generation.finished == generation.known.choices) {
      const ordered_json ledger = co_await OwnLedger(generation);
      const std::string last =
          generation.text.Last(SumUsage(generation.choices, generation.n), ledger);
      if (!last.empty()) out += ServerSentEvent(last);
      out += ServerSentEvent("[DONE]");
    }
    if (out.empty()) continue;
    write.value = out.size();
    if (!begun) {
      begun = true;
      HttpResponse head;
      head.content_type = "text/event-stream";
      head.headers.emplace_back("Cache-Control", "no-cache");
      AddHeaders(exchange, &head);
      exchange.status = head.status;
      taken = co_await exchange.responder.BeginStream(head);
      if (!taken) break;
    }
    taken = co_await exchange.responder.WriteStream(out);
    if (!taken) break;
    out.clear();
    write.duration_ns = NowNs() - write.start_ns;
    for (const int32_t choice : choices) {
      write.request_id = generation.known.first_id + static_cast<uint64_t>(choice);
      observers_.sink.Emit(write);
    }
  }
  event::Event end = {.start_ns = NowNs(), .kind = event::Kind::kNetworkWrite};
  if (taken) taken = co_await exchange.responder.EndStream();
  if (!taken) exchange.status = kClientClosed;
  end.duration_ns = NowNs() - end.start_ns;
  EmitAll(generation, end);
}

// ---- small parts -------------------------------------------------------------------------------

void Api::EmitAll(const Generation& generation, event::Event event) const {
  for (int32_t k = 0; k < generation.known.choices; ++k) {
    event.request_id = generation.known.first_id + static_cast<uint64_t>(k);
    observers_.sink.Emit(event);
  }
}

// How long a finished choice waited for this thread.
void Api::EmitWait(const Generation& generation, const TokenQueue::Item& item) const {
  if (!item.finish) return;
  observers_.sink.Emit(
      {.start_ns = item.finished_ns,
       .duration_ns = NowNs() - item.finished_ns,
       .request_id = generation.known.first_id + static_cast<uint64_t>(item.choice),
       .kind = event::Kind::kWaitForCpu});
}

void Api::AddHeaders(const Exchange& exchange, HttpResponse* response) const {
  response->headers.emplace_back("X-Request-Id", exchange.id);
  if (!options_.cors_allow_origin.empty()) {
    response->headers.emplace_back("Access-Control-Allow-Origin", options_.cors_allow_origin);
    response->headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
  }
}

awaitable<void> Api::Reply(Exchange& exchange, HttpResponse& response) {
  AddHeaders(exchange, &response);
  exchange.status = response.status;
  const bool taken = co_await exchange.responder.Send(response);
  if (!taken) exchange.status = kClientClosed;
}

awaitable<void> Api::ReplyResult(Exchange& exchange, const ApiResult<std::string>& body) {
  if (!body) {
    co_await ReplyError(exchange, body.error());
    co_return;
  }
  HttpResponse response;
  response.body = *body;
  co_await Reply(exchange, response);
}

awaitable<void> Api::ReplyError(Exchange& exchange, const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorBody(error);
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  co_await Reply(exchange, response);
}

std::string Api::NewRequestId() { return fmt::format("{:016x}{:016x}", random_(), random_()); }

}  // namespace fathom::server
