#include "cost/measure.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/host_memory.h"

namespace fathom::cost {
namespace {

constexpr int64_t kGrain = 1 << 17;  // words: 1 MiB

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

void ReadProbe::Free::operator()(uint64_t* words) const { std::free(words); }

// Huge pages, as weights and caches have: with small ones a core reads half as fast.
ReadProbe::ReadProbe(ThreadPool& pool, size_t bytes)
    : pool_(pool),
      count_(static_cast<int64_t>(bytes / sizeof(uint64_t))),
      words_(static_cast<uint64_t*>(AllocateHost(bytes))) {
  FATHOM_CHECK(words_ != nullptr, "no memory for {} bytes", bytes);
  // Each thread touches first what it may read, so that the pages lie near it.
  pool_.ParallelFor(count_, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) words_[static_cast<size_t>(i)] = static_cast<uint64_t>(i);
  });
}

double ReadProbe::Pass() {
  std::atomic<uint64_t> sink{0};
  const int64_t start = NowNs();
  pool_.ParallelFor(count_, kGrain, [&](int64_t begin, int64_t end, int) {
    sink.fetch_xor(ReadWords(words_.get() + begin, end - begin), std::memory_order_relaxed);
  });
  return static_cast<double>(count_) * sizeof(uint64_t) * 1e9 /
         static_cast<double>(NowNs() - start);
}

double MeasureReadBandwidth(ThreadPool& pool, size_t bytes, int repeats) {
  ReadProbe probe(pool, bytes);
  std::vector<double> rates;
  for (int r = 0; r < std::max(repeats, 1); ++r) rates.push_back(probe.Pass());
  std::nth_element(rates.begin(), rates.begin() + static_cast<int64_t>(rates.size() / 2),
                   rates.end());
  return rates[rates.size() / 2];
}

}  // namespace fathom::cost
