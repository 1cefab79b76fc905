#include "cost/communication.h"

#include <cmath>

namespace fathom::cost {

double AllToAllDispatchBytes(double tokens, double top_k, double ranks, double hidden,
                             double bytes_per_element) {
  if (ranks <= 1) return 0;
  // A remote rank is spared only when none of the top_k choices falls on it.
  const double remote_ranks = (ranks - 1) * (1 - std::pow(1 - 1 / ranks, top_k));
  return tokens * remote_ranks * hidden * bytes_per_element;
}

}  // namespace fathom::cost
