#pragma once
// The endpoints: OpenAI's, the tokenizer's, health, metrics and ledgers. Requests come in through
// HttpRequest, answers leave through HttpResponder; the session does the work in between.
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "event/ring.h"
#include "observe/ledger.h"
#include "observe/metrics.h"
#include "observe/recorder.h"
#include "server/http.h"
#include "server/openai_types.h"
#include "server/response_json.h"
#include "server/token_queue.h"
#include "session/session.h"

namespace fathom::server {

// The observing side, owned by whoever runs the server. Without events the sink discards, and
// recorder and ledger are null.
struct Observers {
  event::Sink sink;
  observe::Recorder* recorder = nullptr;
  observe::Ledger* ledger = nullptr;
  observe::Metrics* metrics = nullptr;
};

struct ApiOptions {
  std::vector<std::string> api_keys;  // empty: no key is asked for
  std::string cors_allow_origin;      // empty: no CORS headers
  int32_t workers = 2;                // threads that parse, render and tokenise
};

class Api {
 public:
  Api(ApiOptions options, session::Session& session, const Observers& observers);

  boost::asio::awaitable<void> Handle(const HttpRequest& request, HttpResponder& responder);

  // New generations are refused and /health is 503 from now on.
  void BeginDrain() { draining_ = true; }
  // Before the loop that Handle runs on goes away: waits for work that refers to its coroutines.
  void JoinWorkers() { workers_.join(); }
  int32_t requests_in_flight() const { return in_flight_; }

 private:
  struct Route;
  struct Exchange;
  struct Generation;
  class WakeUp;
  struct KnownRequest {
    engine::RequestId first_id = 0;
    int32_t choices = 0;
  };

  static const std::vector<Route>& Routes();
  boost::asio::awaitable<void> Dispatch(Exchange& exchange);
  ApiResult<const Route*> Admit(Exchange& exchange);
  static HttpResponse Preflight();
  std::optional<ApiError> Authorize(const HttpRequest& request) const;

  boost::asio::awaitable<void> Health(Exchange& exchange);
  boost::asio::awaitable<void> MetricsPage(Exchange& exchange);
  boost::asio::awaitable<void> Models(Exchange& exchange);
  boost::asio::awaitable<void> ModelPage(Exchange& exchange);
  boost::asio::awaitable<void> Tokenize(Exchange& exchange);
  boost::asio::awaitable<void> Detokenize(Exchange& exchange);
  boost::asio::awaitable<void> LedgerPage(Exchange& exchange);
  boost::asio::awaitable<void> Chat(Exchange& exchange);
  boost::asio::awaitable<void> Complete(Exchange& exchange);

  // On a worker: parse, announce, submit.
  ApiResult<std::unique_ptr<Generation>> StartChat(const Exchange& exchange,
                                                   std::shared_ptr<TokenQueue> queue);
  ApiResult<std::unique_ptr<Generation>> StartCompletion(const Exchange& exchange,
                                                         std::shared_ptr<TokenQueue> queue);
  std::unique_ptr<Generation> Announce(const Exchange& exchange, ResponseKind kind,
                                       const OutputOptions& output, int32_t n, size_t prompts,
                                       std::shared_ptr<TokenQueue> queue);

  using Start = ApiResult<std::unique_ptr<Generation>> (Api::*)(const Exchange&,
                                                                std::shared_ptr<TokenQueue>);
  boost::asio::awaitable<void> Generate(Exchange& exchange, Start start);
  boost::asio::awaitable<void> AnswerWhole(Exchange& exchange, Generation& generation,
                                           WakeUp& wake);
  boost::asio::awaitable<void> AnswerStream(Exchange& exchange, Generation& generation,
                                            WakeUp& wake);
  boost::asio::awaitable<nlohmann::ordered_json> LedgerOf(const KnownRequest& request,
                                                          const std::string& id);
  boost::asio::awaitable<nlohmann::ordered_json> OwnLedger(const Generation& generation);

  boost::asio::awaitable<void> Reply(Exchange& exchange, HttpResponse& response);
  boost::asio::awaitable<void> ReplyResult(Exchange& exchange, const ApiResult<std::string>& body);
  boost::asio::awaitable<void> ReplyError(Exchange& exchange, const ApiError& error);
  void AddHeaders(const Exchange& exchange, HttpResponse* response) const;
  std::string NewRequestId();
  void EmitAll(const Generation& generation, event::Event event) const;
  void EmitWait(const Generation& generation, const TokenQueue::Item& item) const;

  const ApiOptions options_;
  session::Session& session_;
  const Observers observers_;
  const RequestLimits limits_;
  const int64_t started_unix_s_;
  boost::asio::thread_pool workers_;
  std::atomic<bool> draining_{false};
  std::atomic<int32_t> in_flight_{0};
  std::atomic<engine::RequestId> next_id_{1};

  std::mutex known_mutex_;
  std::unordered_map<std::string, KnownRequest> known_;  // by request id, for /v1/requests
  std::deque<std::string> known_order_;
  std::mt19937_64 random_;
};

}  // namespace fathom::server
