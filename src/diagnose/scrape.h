#pragma once
// Reading a server's /metrics while it runs.
#include <functional>
#include <string>

#include "base/http_get.h"
#include "base/result.h"

namespace fathom::diagnose {

// The page behind a line "# Time: SECONDS" (UTC): what the Prometheus reader takes for one scrape
// of a series.
Result<std::string> Scrape(const Url& url, const HttpLimits& limits = {});

struct ScrapeSeries {
  std::string text;
  int scraped = 0;
  int failed = 0;
  std::string last_failure;
};

// A scrape a second for `seconds`, the first and the last included. That the first fails is an
// error; of later failures the others survive. `tick` is told how many seconds have passed.
Result<ScrapeSeries> ScrapeFor(const Url& url, int seconds,
                               const std::function<void(int)>& tick = {});

}  // namespace fathom::diagnose
