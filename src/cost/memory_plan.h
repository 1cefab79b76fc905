#pragma once
// Where a model's memory goes, settled before any of it is allocated.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace fathom::cost {

struct MemoryLine {
  std::string name;  // "experts", "activations", ...
  uint64_t bytes = 0;
  std::string detail;  // what it is made of
};

// How much memory there is, and who says so.
struct MemoryBudget {
  uint64_t bytes = 0;
  std::string source;  // "--max-memory", "cgroup limit", "MemAvailable"
};

struct KvRequest {
  int64_t page_tokens = 0;
  uint64_t page_bytes = 0;  // one page in all layers of all groups
  // The longest sequence that is wanted, and the one that must fit at least.
  int64_t sequence_tokens = 0;
  int64_t min_sequence_tokens = 0;
  // More pages than one such sequence needs: up to max_pages, and at most this share of what the
  // fixed lines leave.
  int64_t max_pages = 0;
  double share = 0.25;
};

struct MemoryPlan {
  MemoryBudget budget;
  std::vector<MemoryLine> lines;  // everything but the KV pages
  int64_t page_tokens = 0;
  uint64_t page_bytes = 0;
  int64_t num_pages = 0;  // planned
  int64_t max_pages = 0;  // that would fit
  int64_t sequence_tokens = 0;

  uint64_t FixedBytes() const;
  uint64_t KvBytes() const { return page_bytes * static_cast<uint64_t>(num_pages); }
  uint64_t TotalBytes() const { return FixedBytes() + KvBytes(); }
  // The plan as an aligned table.
  std::string Table() const;
};

// Fills in the pages. When the fixed lines or the pages of the shortest acceptable sequence do not
// fit, the error holds the table and the bytes that are missing.
Result<MemoryPlan> SolveMemoryPlan(std::vector<MemoryLine> lines, const MemoryBudget& budget,
                                   const KvRequest& kv);

}  // namespace fathom::cost
