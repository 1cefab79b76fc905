#pragma once
// A blocking HTTP/1.1 GET for tools that read one page (a server's /metrics): plain http, bounded
// in time and size.
#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace fathom {

struct Url {
  std::string host;
  std::string port = "80";
  std::string target = "/";  // path and query
};

// "http://host:port/path"; the scheme may be left out. https is refused by name.
Result<Url> ParseUrl(std::string_view text);

struct HttpLimits {
  int timeout_ms = 2000;  // of the whole exchange
  size_t max_bytes = size_t{64} << 20;
};

// The body of a 200 answer; anything else is an error that names the URL and what came back.
Result<std::string> HttpGet(const Url& url, const HttpLimits& limits = {});

}  // namespace fathom
