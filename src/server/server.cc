#include "server/server.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace fathom::server {
namespace {

namespace asio = boost::asio;

// How long responses may go on being written after the engine is done with them.
constexpr int64_t kLastWritesNs = 2'000'000'000;

std::string RefusalBody(int status, std::string message) {
  const bool ours = status >= 500;
  return ErrorBody({.status = status,
                    .message = std::move(message),
                    .code = ours ? "unavailable" : "invalid_http",
                    .type = ours ? "server_error" : "invalid_request_error"});
}

class ServerImpl : public Server {
 public:
  ServerImpl(const ServerOptions& options, session::Session& session, const Observers& observers)
      : options_(options),
        session_(session),
        recorder_(observers.recorder),
        api_(options.api, session, observers),
        signals_(io_),
        settled_(io_),
        http_(
            io_, options.limits,
            [this](const HttpRequest& request, HttpResponder& responder) {
              return api_.Handle(request, responder);
            },
            RefusalBody) {}

  ~ServerImpl() override {
    for (std::thread* thread : {&drainer_, &hurrier_}) {
      if (thread->joinable()) thread->join();
    }
    // Nobody may call into the loop once it is being destroyed.
    api_.JoinWorkers();
    if (recorder_ != nullptr) recorder_->Flush();
  }

  Status Listen() {
    FATHOM_ASSIGN_OR_RETURN(port_, http_.Listen(options_.host, options_.port));
    if (!options_.handle_signals) return {};
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    AwaitSignal();
    return {};
  }

  uint16_t port() const override { return port_; }
  void Run() override { io_.run(); }
  void Drain() override {
    asio::post(io_, [this] { BeginDrain(); });
  }

 private:
  void AwaitSignal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      spdlog::info("{}: {}", signal == SIGTERM ? "SIGTERM" : "SIGINT",
                   draining_ ? "ending at once" : "draining; once more ends at once");
      if (draining_) {
        Hurry();
        return;
      }
      BeginDrain();
      AwaitSignal();
    });
  }

  void BeginDrain() {
    if (std::exchange(draining_, true)) return;
    api_.BeginDrain();
    http_.CloseAfterResponse();
    const int64_t deadline_ns = NowNs() + int64_t{options_.drain_s} * 1'000'000'000;
    drainer_ = std::thread([this, deadline_ns] {  // the session may take its time over it
      session_.Drain(deadline_ns);
      drained_ = true;
    });
    stop_ns_ = deadline_ns + kLastWritesNs;
    StopWhenSettled();
  }

  // What is still running is cancelled; what has been said is still written.
  void Hurry() {
    hurrier_ = std::thread([this] { session_.Drain(NowNs()); });
    stop_ns_ = NowNs() + kLastWritesNs;
  }

  // Responses go on being written after the engine is done with them.
  void StopWhenSettled() {
    if ((drained_ && api_.requests_in_flight() == 0) || NowNs() > stop_ns_) {
      io_.stop();
      return;
    }
    settled_.expires_after(std::chrono::milliseconds(10));
    settled_.async_wait([this](const boost::system::error_code& error) {
      if (!error) StopWhenSettled();
    });
  }

  const ServerOptions options_;
  session::Session& session_;
  observe::Recorder* recorder_;
  Api api_;
  // After api_: what is still suspended when the loop has stopped is destroyed with the loop and
  // may use the endpoints while it goes.
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::steady_timer settled_;
  HttpServer http_;
  uint16_t port_ = 0;
  bool draining_ = false;  // I/O thread
  std::atomic<bool> drained_{false};
  int64_t stop_ns_ = 0;  // when to stop whatever is still being written
  std::thread drainer_, hurrier_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(const ServerOptions& options,
                                               session::Session& session,
                                               const Observers& observers) {
  auto server = std::make_unique<ServerImpl>(options, session, observers);
  FATHOM_TRY(server->Listen());
  return server;
}

}  // namespace fathom::server
