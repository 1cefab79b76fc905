#include "ops/cuda/schedule_report.h"

#include <algorithm>
#include <functional>

#include "kernels/cuda/decode_schedule.h"
#include "ops/sparse_plan.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

ScheduleReport Report(std::string mapping, int64_t blocks, const AttentionKernel& kernel,
                      const cost::Hardware& hardware, const Loads& loads) {
  const auto slots = static_cast<int64_t>(loads.per_worker.size());
  return {.mapping = std::move(mapping),
          .blocks = blocks,
          .slots = slots,
          .waves = static_cast<double>(blocks) / static_cast<double>(slots),
          .occupancy = static_cast<double>(kernel.threads) * kernel.blocks_per_sm /
                       cost::SmLimitsOf(hardware).threads,
          .balance = loads.balance(),
          .busy = loads.busy()};
}

}  // namespace

Result<std::vector<WorkUnit>> ListUnits(const AttentionCase& problem, int tile_queries,
                                        int tile_keys) {
  const cost::AttentionCall& call = problem.call;
  // What is walked one by one below and by the schedules.
  constexpr int64_t kMaxUnits = int64_t{1} << 20;
  int64_t tiles = 0;
  for (const cost::AttentionSequence& s : call.sequences) {
    tiles += (s.queries + tile_queries - 1) / tile_queries;
  }
  const int64_t pairs = tiles * (problem.decode ? call.kv_heads : call.heads);
  if (pairs > kMaxUnits) {
    return Err(Code::kResourceExhausted,
               "{} tiles of {} queries and heads in all: expected at most {}; fewer or shorter "
               "sequences, or fewer heads, have the same shape",
               pairs, tile_queries, kMaxUnits);
  }
  std::vector<WorkUnit> units;
  const auto count = [tile_keys](int64_t keys) { return (keys + tile_keys - 1) / tile_keys; };
  if (call.window < 0) {
    for (size_t i = 0; i < call.sequences.size(); ++i) {
      const cost::AttentionSequence& s = call.sequences[i];
      for (int64_t q = 0; q < s.queries; q += tile_queries) {
        const int64_t seen = s.keys - s.queries + std::min(q + tile_queries, s.queries);
        units.push_back({static_cast<int32_t>(i), count(call.causal ? seen : s.keys)});
      }
    }
    return units;
  }
  std::vector<sparse::Sequence> sequences;
  for (const cost::AttentionSequence& s : call.sequences) {
    sequences.push_back({static_cast<int32_t>(s.queries), static_cast<int32_t>(s.keys)});
  }
  FATHOM_ASSIGN_OR_RETURN(
      const sparse::Plan plan,
      sparse::MakePlan(
          {.num_heads = 1, .num_kv_heads = 1, .tile_queries = tile_queries, .tile_keys = tile_keys},
          {.causal = call.causal,
           .heads = {{sparse::HeadRole::kLocal, static_cast<int32_t>(call.window),
                      static_cast<int32_t>(call.anchors)}}},
          std::move(sequences)));
  for (const sparse::TileRow& row : plan.rows) {
    units.push_back({row.sequence, row.end - row.begin});
  }
  return units;
}

ScheduleReport ReportDecode(const DecodeAttentionPlan& plan, const std::vector<WorkUnit>& units,
                            const cost::Hardware& hardware) {
  // Tile lists make one line of all kv heads' tiles, else each kv head has the same line.
  const bool lists = plan.shape.tile_lists;
  std::vector<int32_t> lengths, tiles = {0}, segments = {0};
  for (const WorkUnit& unit : units) {
    for (int i = 0; i < (lists ? plan.shape.num_kv_heads : 1); ++i) {
      lengths.push_back(static_cast<int32_t>(unit.tiles) * cuda::kDecodeTileTokens);
      tiles.push_back(tiles.back() + static_cast<int32_t>(unit.tiles));
      segments.push_back(segments.back() + cuda::DecodeSegments(plan.split, lengths.back()));
    }
  }
  const auto count = static_cast<int32_t>(lengths.size());
  const bool equal = std::all_of(lengths.begin(), lengths.end(),
                                 [&lengths](int32_t length) { return length == lengths[0]; });
  const int32_t used = cuda::DecodeUsedParts(tiles.back(), count, equal, plan.num_parts);
  const int groups = (lists ? 1 : plan.shape.num_kv_heads) * plan.row_tiles;
  std::vector<double> costs;
  for (int32_t part = 0; part < used; ++part) {
    const cuda::DecodePart made = cuda::MakeDecodePart(plan.split, tiles.data(), segments.data(),
                                                       lengths.data(), count, used, part);
    costs.insert(costs.end(), static_cast<size_t>(groups), made.num_tiles);
  }
  const int slots = hardware.num_sms * plan.kernel.blocks_per_sm;
  return Report(lists ? fmt::format("one line of all heads' listed tiles cut into {} even parts, "
                                    "for each of {} row tiles",
                                    used, groups)
                      : fmt::format("one line of tiles cut into {} even parts, for each of {} "
                                    "heads and row tiles",
                                    used, groups),
                int64_t{plan.num_parts} * groups, plan.kernel, hardware,
                DealToFirstFree(costs, slots));
}

std::vector<double> PrefillOrder(const std::vector<WorkUnit>& units, int heads, int section_heads) {
  std::vector<int64_t> sorted;
  for (const WorkUnit& unit : units) sorted.push_back(unit.tiles);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<double> costs;
  costs.reserve(sorted.size() * static_cast<size_t>(heads));
  for (int head = 0; head < heads; head += section_heads) {
    const auto together = static_cast<size_t>(std::min(section_heads, heads - head));
    for (const int64_t tiles : sorted) {
      costs.insert(costs.end(), together, static_cast<double>(tiles));
    }
  }
  return costs;
}

ScheduleReport ReportPrefill(const PrefillAttentionPlan& plan, const std::vector<WorkUnit>& units,
                             const cost::Hardware& hardware) {
  const std::vector<double> costs = PrefillOrder(units, plan.shape.num_heads, plan.section_heads);
  return Report(fmt::format("a counter hands out {} (row tile, head) pairs, longest first, heads "
                            "in sections of {}",
                            costs.size(), plan.section_heads),
                plan.num_blocks, plan.kernel, hardware,
                DealToFirstFree(costs, hardware.num_sms * plan.kernel.blocks_per_sm));
}

}  // namespace fathom::ops
