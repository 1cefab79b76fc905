#pragma once
// HTTP/1.1 as the API sees it, without the library that speaks it (http_server.cc).
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::server {

struct HttpRequest {
  std::string method;
  std::string path;  // of the target, without the query
  std::string body;
  std::string authorization;
  std::string content_type;
  std::string request_id;  // X-Request-Id as it came; may be empty
  int64_t arrived_ns = 0;  // when the last byte of the request had been read
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

// Answers one request: either Send once (which takes the body out of the response), or BeginStream,
// WriteStream..., EndStream. The functions return false when the client is gone or did not take the
// bytes in time. What they refer to stays with the caller until they are done.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  virtual boost::asio::awaitable<bool> Send(HttpResponse& response) = 0;
  virtual boost::asio::awaitable<bool> BeginStream(const HttpResponse& head) = 0;
  virtual boost::asio::awaitable<bool> WriteStream(std::string_view data) = 0;
  virtual boost::asio::awaitable<bool> EndStream() = 0;
  // Calls `gone` once, on the I/O thread, should the client hang up before the response is over.
  virtual void OnClientGone(std::function<void()> gone) = 0;
};

using HttpHandler =
    std::function<boost::asio::awaitable<void>(const HttpRequest& request, HttpResponder&)>;

}  // namespace fathom::server
