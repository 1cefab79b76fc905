#include "diagnose/understand/intervals.h"

namespace fathom::diagnose {

void Merge(std::vector<Interval>& list) {
  std::sort(list.begin(), list.end(),
            [](const Interval& a, const Interval& b) { return a.start_ns < b.start_ns; });
  size_t kept = 0;
  for (const Interval& next : list) {
    if (kept > 0 && next.start_ns <= list[kept - 1].end_ns) {
      list[kept - 1].end_ns = std::max(list[kept - 1].end_ns, next.end_ns);
    } else {
      list[kept++] = next;
    }
  }
  list.resize(kept);
}

int64_t Covered(const std::vector<Interval>& list, int64_t from_ns, int64_t until_ns) {
  auto it = std::lower_bound(list.begin(), list.end(), from_ns,
                             [](const Interval& i, int64_t t) { return i.end_ns < t; });
  int64_t covered = 0;
  for (; it != list.end() && it->start_ns < until_ns; ++it) {
    covered += Overlap(from_ns, until_ns, it->start_ns, it->end_ns);
  }
  return covered;
}

}  // namespace fathom::diagnose
