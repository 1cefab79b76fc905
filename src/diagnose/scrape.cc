#include "diagnose/scrape.h"

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace fathom::diagnose {

Result<std::string> Scrape(const Url& url, const HttpLimits& limits) {
  const Result<std::string> page = HttpGet(url, limits);
  if (!page) return Err(Code::kNotFound, "{}", page.error().message);  // an input that is not there
  return fmt::format("# Time: {:.3f}\n{}\n", static_cast<double>(WallNowNs()) / 1e9, *page);
}

Result<ScrapeSeries> ScrapeFor(const Url& url, int seconds, const std::function<void(int)>& tick) {
  constexpr HttpLimits kWithinASecond{.timeout_ms = 900};
  ScrapeSeries series;
  const auto begin = std::chrono::steady_clock::now();
  for (int second = 0; second <= seconds; ++second) {
    std::this_thread::sleep_until(begin + std::chrono::seconds(second));
    auto page = Scrape(url, second == 0 ? HttpLimits{} : kWithinASecond);
    if (page) {
      series.text += *page;
      ++series.scraped;
    } else if (second == 0) {
      return tl::unexpected(std::move(page.error()));
    } else {
      ++series.failed;
      series.last_failure = std::move(page.error().message);
    }
    if (tick) tick(second);
  }
  return series;
}

}  // namespace fathom::diagnose
