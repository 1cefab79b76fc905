#pragma once
// Accepts connections and turns bytes into HttpRequests, within limits of size, time and number.
// What is not HTTP gets a 4xx and a closed connection. All of it runs on the io_context's thread.
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"

namespace fathom::server {

struct HttpLimits {
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  int32_t max_connections = 4096;
  int32_t idle_ms = 75'000;    // between requests
  int32_t header_ms = 10'000;  // from the first byte of a request to the end of its header
  int32_t body_ms = 30'000;    // for the body
  int32_t write_ms = 60'000;   // for one write to be taken
};

class HttpServer {
 public:
  // `refuse(status, message)` gives the body for requests that never become one.
  HttpServer(boost::asio::io_context& io, const HttpLimits& limits, HttpHandler handler,
             std::function<std::string(int status, std::string message)> refuse);
  ~HttpServer();

  // Binds and begins to accept; "port 0" picks a free one. An error names address and reason.
  Result<uint16_t> Listen(const std::string& host, uint16_t port);
  // From now on each response says "Connection: close".
  void CloseAfterResponse();

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace fathom::server
