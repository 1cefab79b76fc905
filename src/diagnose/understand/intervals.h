#pragma once
// Sets of time as sorted, disjoint intervals.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fathom::diagnose {

struct Interval {
  int64_t start_ns, end_ns;
};

inline int64_t Overlap(int64_t a0, int64_t a1, int64_t b0, int64_t b1) {
  return std::max<int64_t>(0, std::min(a1, b1) - std::max(a0, b0));
}

// Sorts and joins what overlaps or touches.
void Merge(std::vector<Interval>& list);

// How much of [from_ns, until_ns] a merged list covers.
int64_t Covered(const std::vector<Interval>& list, int64_t from_ns, int64_t until_ns);

}  // namespace fathom::diagnose
