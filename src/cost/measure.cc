#include "cost/measure.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace fathom::cost {
namespace {

// Eight independent chains, one a word of a cache line: the loads never wait for each other.
uint64_t ReadWords(const uint64_t* words, int64_t count) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int64_t k = 0; k < 8; ++k) sum[k] ^= words[i + k];
  }
  uint64_t all = 0;
  for (const uint64_t s : sum) all ^= s;
  return all;
}

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool, size_t bytes, int repeats) {
  const auto count = static_cast<int64_t>(bytes / sizeof(uint64_t));
  constexpr int64_t kGrain = 1 << 17;  // 1 MiB
  const auto words = std::make_unique_for_overwrite<uint64_t[]>(static_cast<size_t>(count));
  // Each thread touches first what it may read, so that the pages lie near it.
  pool.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) words[static_cast<size_t>(i)] = static_cast<uint64_t>(i);
  });
  std::vector<double> rates;
  std::atomic<uint64_t> sink{0};
  for (int r = 0; r < std::max(repeats, 1); ++r) {
    const int64_t start = NowNs();
    pool.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end, int) {
      sink.fetch_xor(ReadWords(words.get() + begin, end - begin), std::memory_order_relaxed);
    });
    rates.push_back(static_cast<double>(count) * sizeof(uint64_t) * 1e9 /
                    static_cast<double>(NowNs() - start));
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<int64_t>(rates.size() / 2),
                   rates.end());
  return rates[rates.size() / 2];
}

}  // namespace fathom::cost
