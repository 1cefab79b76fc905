#pragma once
// How evenly work is dealt out to workers that run side by side (blocks of a GPU, threads, ranks):
// pure functions that planners decide with and reports print. Costs and lengths are in any one
// unit.
#include <cstdint>
#include <span>
#include <vector>

namespace fathom::ops {

struct Loads {
  std::vector<double> per_worker;

  double max() const;
  double mean() const;
  // What the slowest worker takes over an even division; 1 is perfect.
  double balance() const;
  // Share of the workers' time that is spent working until the last one ends.
  double busy() const;
};

// Item i goes to worker i mod workers, whatever it costs (one attention head a block).
Loads DealStatically(std::span<const double> costs, int workers);

// Item i goes to worker floor(frac(i * 0x9e3779b9 / 2^32) * workers): the multiplicative hash with
// the golden ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4).
Loads DealByHash(std::span<const double> costs, int workers);

// In the given order, each item to the worker that is free first: what a work counter does. With
// the longest first the last worker ends within 4/3 of the best schedule (Graham, 1969).
Loads DealToFirstFree(std::span<const double> costs, int workers);

// A stretch of one item.
struct Piece {
  int32_t item = 0;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Piece&) const = default;
};

// Puts items of the given lengths on one line and cuts it into `parts` of equal length (to within
// one unit); a part holds stretches of one or more items, in order.
std::vector<std::vector<Piece>> CutEvenly(std::span<const int64_t> lengths, int parts);
Loads LoadsOf(const std::vector<std::vector<Piece>>& parts);

}  // namespace fathom::ops
