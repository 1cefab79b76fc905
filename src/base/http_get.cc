#include "base/http_get.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

namespace fathom {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

// One exchange: resolve, connect, write, read, each continuing in the next callback.
class Exchange {
 public:
  Exchange(const Url& url, const HttpLimits& limits)
      : url_(url), resolver_(io_), stream_(io_), request_(http::verb::get, url.target, 11) {
    request_.set(http::field::host, url.host);
    request_.set(http::field::user_agent, "fathom");
    request_.set(http::field::connection, "close");
    parser_.body_limit(limits.max_bytes);
    stream_.expires_after(std::chrono::milliseconds(limits.timeout_ms));
    timeout_ = std::chrono::milliseconds(limits.timeout_ms);
  }

  Result<std::string> Run() {
    resolver_.async_resolve(url_.host, url_.port, [this](error_code e, auto results) {
      if (Failed(e, "resolve")) return;
      stream_.async_connect(results, [this](error_code e2, const auto&) {
        if (Failed(e2, "connect")) return;
        http::async_write(stream_, request_, [this](error_code e3, size_t) {
          if (Failed(e3, "send")) return;
          http::async_read(stream_, buffer_, parser_, [this](error_code e4, size_t) {
            if (!Failed(e4, "read")) done_ = true;
          });
        });
      });
    });
    io_.run_for(timeout_);
    const std::string where = fmt::format("http://{}:{}{}", url_.host, url_.port, url_.target);
    if (!failure_.empty()) return Err(Code::kUnavailable, "{}: {}", where, failure_);
    if (!done_) {
      return Err(Code::kDeadlineExceeded, "{}: no answer within {} ms", where, timeout_.count());
    }
    if (parser_.get().result() != http::status::ok) {
      return Err(Code::kUnavailable, "{}: expected status 200, found {}", where,
                 parser_.get().result_int());
    }
    return parser_.release().body();
  }

 private:
  bool Failed(error_code error, const char* step) {
    // The stream has the same deadline as the loop: which of the two notices first says nothing.
    if (error && error != beast::error::timeout) {
      failure_ = fmt::format("cannot {}: {}", step, error.message());
    }
    return static_cast<bool>(error);
  }

  const Url& url_;
  asio::io_context io_;
  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request<http::empty_body> request_;
  http::response_parser<http::string_body> parser_;
  std::chrono::milliseconds timeout_{};
  std::string failure_;
  bool done_ = false;
};

}  // namespace

Result<Url> ParseUrl(std::string_view text) {
  const std::string_view whole = text;
  if (text.starts_with("https://")) {
    return Err(Code::kUnsupported, "'{}': https is not supported; give the server's http address",
               whole);
  }
  if (text.starts_with("http://")) text.remove_prefix(7);
  Url url;
  const size_t slash = text.find('/');
  const std::string_view authority = text.substr(0, slash);
  if (slash != std::string_view::npos) url.target = text.substr(slash);
  size_t host_end = authority.find(':');
  url.host = authority.substr(0, host_end);
  if (authority.starts_with('[')) {  // [::1]:8000
    const size_t bracket = authority.find(']');
    host_end = bracket == std::string_view::npos ? bracket : authority.find(':', bracket);
    url.host = bracket == std::string_view::npos ? std::string()
                                                 : std::string(authority.substr(1, bracket - 1));
  }
  if (host_end != std::string_view::npos) url.port = authority.substr(host_end + 1);
  const bool port_is_number = !url.port.empty() && url.port.size() <= 5 &&
                              url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !port_is_number) {
    return Err(Code::kInvalidArgument, "'{}': expected http://HOST:PORT/PATH", whole);
  }
  return url;
}

Result<std::string> HttpGet(const Url& url, const HttpLimits& limits) {
  try {
    return Exchange(url, limits).Run();
  } catch (const std::exception& error) {
    return Err(Code::kInternal, "http://{}:{}: {}", url.host, url.port, error.what());
  }
}

}  // namespace fathom
