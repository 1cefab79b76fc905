#pragma once
// Other ways to choose tiles and to deal work, by name, to set beside the planner's own. The
// handbook's are from docs/claims.md; each row says what it would choose on a GPU, how even the
// result is, and why it cannot be run where it cannot.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/cuda/schedule_report.h"

namespace fathom::ops {

struct PolicyRow {
  std::string name;
  std::string claim;  // "A4"; empty: Fathom's own
  int rows = 0;       // query rows of a tile
  int keys = 0;
  int64_t shared_bytes = 0;  // of a block: queries and two tiles of keys and values
  ScheduleReport schedule;
  std::string obstacle;  // why no kernel has these tiles; empty: the planner's kernel does
};

// "fathom", "handbook-blocks" (A4: keys of a tile by GPU), "handbook-io" (B4: formula of the
// bandwidths), "handbook-hash-64", "handbook-hash-128" (B7: shards of keys to blocks by a hash),
// "handbook-static" (A8: a head to a block).
std::vector<std::string_view> PolicyNames();

// The formula of claim B4; bandwidths in GB/s.
struct QueryKeyBlock {
  int rows = 0;
  int keys = 0;
};
QueryKeyBlock HandbookIoBlock(double hbm_gb_per_s, double global_gb_per_s);

// The kernel that the problem takes on an H200, which kernels are made for; none: no kernel does.
std::optional<AttentionKernel> PlannedKernel(const AttentionCase& problem);

// global_gb_per_s: measured bandwidth of global memory for B4; 0: the data sheet's HBM rate.
Result<PolicyRow> EvaluatePolicy(std::string_view name, const AttentionCase& problem,
                                 const cost::Hardware& hardware, double global_gb_per_s = 0);

}  // namespace fathom::ops
