#include "ops/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/check.h"

namespace fathom::ops {

double Loads::max() const {
  return per_worker.empty() ? 0 : *std::max_element(per_worker.begin(), per_worker.end());
}

double Loads::mean() const {
  if (per_worker.empty()) return 0;
  return std::accumulate(per_worker.begin(), per_worker.end(), 0.0) /
         static_cast<double>(per_worker.size());
}

double Loads::balance() const { return mean() > 0 ? max() / mean() : 1; }
double Loads::busy() const { return max() > 0 ? mean() / max() : 1; }

Loads DealStatically(std::span<const double> costs, int workers) {
  FATHOM_CHECK(workers > 0, "{} workers", workers);
  Loads loads{std::vector<double>(static_cast<size_t>(workers))};
  for (size_t i = 0; i < costs.size(); ++i) {
    loads.per_worker[i % static_cast<size_t>(workers)] += costs[i];
  }
  return loads;
}

Loads DealByHash(std::span<const double> costs, int workers) {
  FATHOM_CHECK(workers > 0, "{} workers", workers);
  constexpr uint32_t kGoldenRatio = 0x9e3779b9;
  Loads loads{std::vector<double>(static_cast<size_t>(workers))};
  for (size_t i = 0; i < costs.size(); ++i) {
    const uint32_t hash = static_cast<uint32_t>(i) * kGoldenRatio;
    loads.per_worker[static_cast<size_t>(uint64_t{hash} * static_cast<uint64_t>(workers) >> 32)] +=
        costs[i];
  }
  return loads;
}

Loads DealToFirstFree(std::span<const double> costs, int workers) {
  FATHOM_CHECK(workers > 0, "{} workers", workers);
  Loads loads{std::vector<double>(static_cast<size_t>(workers))};
  using Worker = std::pair<double, size_t>;  // busy until, index
  std::priority_queue<Worker, std::vector<Worker>, std::greater<>> free;
  for (size_t i = 0; i < loads.per_worker.size(); ++i) free.emplace(0.0, i);
  for (const double cost : costs) {
    const auto [until, worker] = free.top();
    free.pop();
    loads.per_worker[worker] += cost;
    free.emplace(until + cost, worker);
  }
  return loads;
}

std::vector<std::vector<Piece>> CutEvenly(std::span<const int64_t> lengths, int parts) {
  FATHOM_CHECK(parts > 0, "{} parts", parts);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<std::vector<Piece>> result(static_cast<size_t>(parts));
  size_t item = 0;
  int64_t before = 0;  // units on the line in front of `item`
  for (int p = 0; p < parts; ++p) {
    int64_t at = total * p / parts;
    const int64_t end = total * (p + 1) / parts;
    while (at < end) {
      while (before + lengths[item] <= at) before += lengths[item++];
      const int64_t stop = std::min(end, before + lengths[item]);
      result[static_cast<size_t>(p)].push_back(
          {static_cast<int32_t>(item), at - before, stop - before});
      at = stop;
    }
  }
  return result;
}

Loads LoadsOf(const std::vector<std::vector<Piece>>& parts) {
  Loads loads;
  for (const auto& part : parts) {
    double sum = 0;
    for (const Piece& piece : part) sum += static_cast<double>(piece.end - piece.begin);
    loads.per_worker.push_back(sum);
  }
  return loads;
}

}  // namespace fathom::ops
