#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>

#include "base/clock.h"

namespace fathom::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// What to tell a client whose bytes are not a request.
HttpResponse RefusalOf(beast::error_code error, const HttpLimits& limits) {
  if (error == http::error::body_limit) {
    return {.status = 413,
            .body = fmt::format("the request body exceeds {} bytes", limits.max_body_bytes)};
  }
  if (error == http::error::header_limit) {
    return {.status = 431,
            .body = fmt::format("the request header exceeds {} bytes", limits.max_header_bytes)};
  }
  if (error == http::error::bad_version) {
    return {.status = 505, .body = "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  }
  return {.status = 400, .body = fmt::format("not a valid HTTP request: {}", error.message())};
}

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const HttpLimits& limits, HttpHandler handler,
       std::function<std::string(int, std::string)> refuse)
      : io_(io),
        limits_(limits),
        handler_(std::move(handler)),
        refuse_(std::move(refuse)),
        acceptor_(io) {}

  Result<uint16_t> Listen(const std::string& host, uint16_t port);
  void Stop();

  asio::io_context& io_;
  const HttpLimits limits_;
  HttpHandler handler_;
  std::function<std::string(int, std::string)> refuse_;
  tcp::acceptor acceptor_;
  int32_t connections_ = 0;
  bool closing_ = false;

 private:
  awaitable<void> Accept();
};

namespace {

class Connection : public HttpResponder, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<HttpServer::Impl> server)
      : stream_(std::move(socket)), server_(std::move(server)) {
    ++server_->connections_;
  }
  ~Connection() override { --server_->connections_; }

  // Static, with an owning parameter: a coroutine starts after the caller has let go.
  static awaitable<void> Run(std::shared_ptr<Connection> self);
  // Answers 503 without reading: there are too many connections.
  static awaitable<void> TurnAway(std::shared_ptr<Connection> self);

  awaitable<bool> Send(HttpResponse& response) override;
  awaitable<bool> BeginStream(const HttpResponse& head) override;
  awaitable<bool> WriteStream(std::string_view data) override;
  awaitable<bool> EndStream() override;
  void OnClientGone(std::function<void()> gone) override;

 private:
  awaitable<void> Serve();
  // The next request; nothing when the connection is to be closed (it has been answered then).
  awaitable<std::optional<HttpRequest>> ReadRequest();
  awaitable<void> Refuse(beast::error_code error);
  template <class Body>
  void SetHead(const HttpResponse& from, http::response<Body>* to);
  void Watch();
  void Expire(int32_t ms) { stream_.expires_after(std::chrono::milliseconds(ms)); }

  beast::tcp_stream stream_;
  std::shared_ptr<HttpServer::Impl> server_;
  beast::flat_buffer buffer_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool answered_ = false;
  bool head_only_ = false;
  std::function<void()> gone_;
  uint64_t watch_ = 0;  // which request is watched; a stale watcher does nothing
};

awaitable<void> Connection::Run(std::shared_ptr<Connection> self) { co_await self->Serve(); }

awaitable<void> Connection::Serve() {
  beast::error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
  for (;;) {
    std::optional<HttpRequest> request = co_await ReadRequest();
    if (!request) break;
    answered_ = false;
    head_only_ = request->method == "HEAD";
    std::string failure;
    try {
      co_await server_->handler_(*request, *this);
    } catch (const std::exception& error) {  // of a library: memory ran out, for one
      failure = error.what();
    }
    ++watch_;
    gone_ = nullptr;
    if (!failure.empty()) {
      keep_alive_ = false;
      if (!answered_) {
        HttpResponse response;
        response.status = 500;
        response.body = server_->refuse_(500, "internal error: " + failure);
        co_await Send(response);
      }
    }
    if (!answered_ || !keep_alive_ || server_->closing_) break;
  }
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  // A client that is still sending would get a reset that can destroy the answer on its way:
  // what it sends is read and dropped for a moment.
  char scratch[4096];
  Expire(1000);
  for (int i = 0; i < 256; ++i) {
    const auto [error, n] = co_await stream_.async_read_some(asio::buffer(scratch), kTuple);
    if (error) break;
  }
}

awaitable<void> Connection::TurnAway(std::shared_ptr<Connection> self) {
  self->keep_alive_ = false;
  HttpResponse response;
  response.status = 503;
  response.body = self->server_->refuse_(503, "too many connections");
  co_await self->Send(response);
  beast::error_code ignored;
  self->stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

awaitable<std::optional<HttpRequest>> Connection::ReadRequest() {
  const HttpLimits& limits = server_->limits_;
  // Waits for the first byte longer than for the header that it begins.
  if (buffer_.size() == 0) {
    Expire(limits.idle_ms);
    const auto [error, n] = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
    if (error) co_return std::nullopt;
    buffer_.commit(n);
  }
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
  parser.body_limit(limits.max_body_bytes);
  Expire(limits.header_ms);
  {
    const auto [error, n] = co_await http::async_read_header(stream_, buffer_, parser, kTuple);
    if (error) {
      co_await Refuse(error);
      co_return std::nullopt;
    }
  }
  version_ = parser.get().version();
  keep_alive_ = parser.get().keep_alive();
  if (View(parser.get()[http::field::expect]) == "100-continue") {
    const auto length = parser.content_length();
    if (length && *length > limits.max_body_bytes) {
      co_await Refuse(http::error::body_limit);
      co_return std::nullopt;
    }
    http::response<http::empty_body> proceed(http::status::continue_, 11);
    const auto [error, n] = co_await http::async_write(stream_, proceed, kTuple);
    if (error) co_return std::nullopt;
  }
  Expire(limits.body_ms);
  {
    const auto [error, n] = co_await http::async_read(stream_, buffer_, parser, kTuple);
    if (error) {
      co_await Refuse(error);
      co_return std::nullopt;
    }
  }
  http::request<http::string_body> message = parser.release();
  HttpRequest request;
  request.arrived_ns = NowNs();
  request.method = View(message.method_string());
  const std::string_view target = View(message.target());
  request.path = target.substr(0, target.find('?'));
  request.body = std::move(message.body());
  request.authorization = View(message[http::field::authorization]);
  request.content_type = View(message[http::field::content_type]);
  request.request_id = View(message["X-Request-Id"]);
  co_return request;
}

awaitable<void> Connection::Refuse(beast::error_code error) {
  keep_alive_ = false;
  // A timeout has closed the socket; a client that left between two requests expects nothing.
  if (error == beast::error::timeout || error == http::error::end_of_stream) co_return;
  HttpResponse response = RefusalOf(error, server_->limits_);
  response.body = server_->refuse_(response.status, std::move(response.body));
  co_await Send(response);
}

template <class Body>
void Connection::SetHead(const HttpResponse& from, http::response<Body>* to) {
  to->version(version_);
  to->result(static_cast<unsigned>(from.status));
  to->set(http::field::server, "fathom");
  to->set(http::field::content_type, from.content_type);
  for (const auto& [name, value] : from.headers) to->set(name, value);
  if (server_->closing_) keep_alive_ = false;
  to->keep_alive(keep_alive_);
}

awaitable<bool> Connection::Send(HttpResponse& response) {
  answered_ = true;
  http::response<http::string_body> message;
  SetHead(response, &message);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_only_) message.body().clear();  // the length of what GET would have sent stays
  Expire(server_->limits_.write_ms);
  const auto [error, n] = co_await http::async_write(stream_, message, kTuple);
  if (error) keep_alive_ = false;
  co_return !error;
}

awaitable<bool> Connection::BeginStream(const HttpResponse& head) {
  answered_ = true;
  if (version_ < 11) keep_alive_ = false;  // HTTP/1.0 has no chunks: the end is the close
  http::response<http::empty_body> message;
  SetHead(head, &message);
  message.chunked(version_ >= 11);
  http::response_serializer<http::empty_body> serializer(message);
  Expire(server_->limits_.write_ms);
  const auto [error, n] = co_await http::async_write_header(stream_, serializer, kTuple);
  if (error) keep_alive_ = false;
  co_return !error;
}

awaitable<bool> Connection::WriteStream(std::string_view data) {
  Expire(server_->limits_.write_ms);
  const asio::const_buffer buffer(data.data(), data.size());
  boost::system::error_code error;
  if (version_ >= 11) {
    std::tie(error, std::ignore) =
        co_await asio::async_write(stream_, http::make_chunk(buffer), kTuple);
  } else {
    std::tie(error, std::ignore) = co_await asio::async_write(stream_, buffer, kTuple);
  }
  if (error) keep_alive_ = false;
  co_return !error;
}

awaitable<bool> Connection::EndStream() {
  if (version_ < 11) co_return true;
  Expire(server_->limits_.write_ms);
  const auto [error, n] = co_await asio::async_write(stream_, http::make_chunk_last(), kTuple);
  if (error) keep_alive_ = false;
  co_return !error;
}

void Connection::OnClientGone(std::function<void()> gone) {
  gone_ = std::move(gone);
  ++watch_;
  Watch();
}

// Readable and nothing there to read: the client has hung up. Bytes of a next request end the
// watch; then only a failing write tells.
void Connection::Watch() {
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this(), watch = watch_](
                                                          const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self == nullptr || self->watch_ != watch || self->gone_ == nullptr) return;
    char byte = 0;
    const ssize_t n =
        error ? 0 : recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      self->Watch();
      return;
    }
    self->keep_alive_ = false;
    std::exchange(self->gone_, nullptr)();
  });
}

}  // namespace

Result<uint16_t> HttpServer::Impl::Listen(const std::string& host, uint16_t port) {
  const std::string where = fmt::format("{}:{}", host, port);
  boost::system::error_code error;
  auto failed = [&](std::string_view what) {
    return Err(Code::kInvalidArgument, "cannot listen on {}: {}: {}", where, what, error.message());
  };
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(
      host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return failed(
        "expected an address of this machine (127.0.0.1: this machine alone, 0.0.0.0: "
        "every interface)");
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (error) return failed("socket");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (error) return failed("socket option");
  acceptor_.bind(endpoint, error);
  if (error == asio::error::address_in_use) {
    return failed("another program listens there; --port 0 takes a free one");
  }
  if (error) return failed("bind");
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed("listen");
  const uint16_t bound = acceptor_.local_endpoint().port();
  asio::co_spawn(io_, Accept(), asio::detached);
  return bound;
}

void HttpServer::Impl::Stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

awaitable<void> HttpServer::Impl::Accept() {
  const auto self = shared_from_this();
  asio::steady_timer pause(io_);
  for (;;) {
    auto [error, socket] = co_await acceptor_.async_accept(kTuple);
    if (!acceptor_.is_open()) co_return;
    if (error) {  // out of file descriptors: others will close theirs
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(kTuple);
      continue;
    }
    const bool full = connections_ >= limits_.max_connections;
    const auto connection = std::make_shared<Connection>(std::move(socket), self);
    asio::co_spawn(io_, full ? Connection::TurnAway(connection) : Connection::Run(connection),
                   asio::detached);
  }
}

HttpServer::HttpServer(asio::io_context& io, const HttpLimits& limits, HttpHandler handler,
                       std::function<std::string(int, std::string)> refuse)
    : impl_(std::make_shared<Impl>(io, limits, std::move(handler), std::move(refuse))) {}

HttpServer::~HttpServer() { impl_->Stop(); }

Result<uint16_t> HttpServer::Listen(const std::string& host, uint16_t port) {
  return impl_->Listen(host, port);
}

void HttpServer::CloseAfterResponse() { impl_->closing_ = true; }

}  // namespace fathom::server
