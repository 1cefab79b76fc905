#pragma once
// Step 1 of a report: what the machine and the server say of themselves. Statements, not verdicts:
// queue pressure, cache use, preemptions, missed graphs, hit rates, speculation, latency
// histograms, GPU activity. Only what the inputs state is there; an absent input gives no line.
#include <limits>
#include <string_view>
#include <vector>

#include "diagnose/finding.h"
#include "diagnose/timeline.h"

namespace fathom::diagnose {

struct Observation {
  std::string_view id;  // "queue-pressure", stable in fathom.report/1
  Text text;
  double value = std::numeric_limits<double>::quiet_NaN();
  std::string_view unit;  // "share", "requests", "tokens", ...; empty: no number
  bool alarming = false;  // deserves a look: waiting with a full cache, preemptions, ...
};

// Requests wait while the cache is fuller than this: the server is out of pages.
inline constexpr double kFullCache = 0.9;

std::vector<Observation> Observe(const Timeline& timeline);

}  // namespace fathom::diagnose
