#pragma once
// How a plan's work falls on a GPU's SMs, computed on the host: blocks, waves, occupancy, balance.
#include <string>
#include <vector>

#include "cost/hardware.h"
#include "ops/balance.h"
#include "ops/cuda/attention_case.h"

namespace fathom::ops {

struct ScheduleReport {
  std::string mapping;   // how work finds its block
  int64_t blocks = 0;    // launched
  int64_t slots = 0;     // blocks that the GPU holds at once
  double waves = 0;      // blocks / slots
  double occupancy = 0;  // resident warps / the most an SM can hold
  double balance = 1;    // work of the slot that ends last / an even division over all slots
  double busy = 1;       // share of the slots' time spent on work until the last one ends
};

// A unit of work of one kv head (decode: a sequence) or query head (prefill: a tile of query rows).
struct WorkUnit {
  int32_t sequence = 0;
  int64_t tiles = 0;  // of keys; masked ones are not counted
};

// In order. tile_queries: query tokens of a unit.
Result<std::vector<WorkUnit>> ListUnits(const AttentionCase& problem, int tile_queries,
                                        int tile_keys);

// `units`: the sequences; each kv head visits as many tiles.
ScheduleReport ReportDecode(const DecodeAttentionPlan& plan, const std::vector<WorkUnit>& units,
                            const cost::Hardware& hardware);
// `units` of the plan's row tiles.
ScheduleReport ReportPrefill(const PrefillAttentionPlan& plan, const std::vector<WorkUnit>& units,
                             const cost::Hardware& hardware);

// The costs in the order in which the prefill kernel's counter hands them out: heads in sections,
// in a section the row tiles with the most keys first, for each its heads.
std::vector<double> PrefillOrder(const std::vector<WorkUnit>& units, int heads, int section_heads);

}  // namespace fathom::ops
