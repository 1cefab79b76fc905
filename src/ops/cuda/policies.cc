#include "ops/cuda/policies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

namespace fathom::ops {
namespace {

constexpr std::array<std::string_view, 6> kNames = {
    "fathom",           "handbook-blocks",   "handbook-io",
    "handbook-hash-64", "handbook-hash-128", "handbook-static"};

int64_t SharedBytes(const AttentionCase& problem, int rows, int keys) {
  const cost::AttentionCall& call = problem.call;
  constexpr int kStages = 2;
  return int64_t{rows} * call.dim_qk * 2 +
         kStages * int64_t{keys} * cost::CacheBytesPerToken(call) +
         (problem.decode ? int64_t{rows} * keys * 2 : 0);
}

// Float32 scores, their bf16 copies and float32 outputs that a thread of a warpgroup of 64 rows
// holds, beside about 40 registers for the rest.
int PrefillRegisters(const AttentionCase& problem, int keys) {
  constexpr int kRest = 40;
  return keys / 2 + keys / 4 + problem.call.dim_v / 2 + kRest;
}

std::string Obstacle(const AttentionCase& problem, const PolicyRow& row,
                     const AttentionKernel& kernel, const cost::Hardware& hardware) {
  constexpr int kMaxRegisters = 255;
  const int64_t limit = cost::SmLimitsOf(hardware).shared_bytes_per_block;
  const int row_unit = problem.decode ? 8 : 64;
  if (row.rows % row_unit != 0 || row.keys % 16 != 0) {
    return fmt::format("{} x {}: matrix instructions take rows by {} and keys by 16", row.rows,
                       row.keys, row_unit);
  }
  if (row.shared_bytes > limit) {
    return fmt::format("two stages take {} bytes of shared memory, a block has {}",
                       row.shared_bytes, limit);
  }
  if (!problem.decode && PrefillRegisters(problem, row.keys) > kMaxRegisters) {
    return fmt::format("{} registers a thread, there are {}", PrefillRegisters(problem, row.keys),
                       kMaxRegisters);
  }
  if (kernel.rows == 0) return "no kernel has these head dims";
  if (row.rows != kernel.rows || row.keys != kernel.keys) {
    return fmt::format("not built: the kernel for these head dims has tiles of {} x {}",
                       kernel.rows, kernel.keys);
  }
  return WhyNotOn(LimitsOf(hardware), kernel);
}

// Deals the units of all heads out over `slots` blocks.
Loads Deal(std::string_view name, const AttentionCase& problem, const std::vector<WorkUnit>& units,
           int heads, int slots) {
  if (name == "handbook-static") {  // a (sequence, head) is one block's
    std::vector<double> costs;
    for (size_t i = 0; i < problem.call.sequences.size(); ++i) {
      double sum = 0;
      for (const WorkUnit& unit : units) {
        if (unit.sequence == static_cast<int32_t>(i)) sum += static_cast<double>(unit.tiles);
      }
      costs.insert(costs.end(), static_cast<size_t>(heads), sum);
    }
    return DealStatically(costs, slots);
  }
  if (name.starts_with("handbook-hash")) {  // each tile of keys by itself
    int64_t shards = 0;
    for (const WorkUnit& unit : units) shards += unit.tiles * heads;
    return DealByHash(std::vector<double>(static_cast<size_t>(shards), 1.0), slots);
  }
  if (!problem.decode) return DealToFirstFree(PrefillOrder(units, heads, heads), slots);
  std::vector<int64_t> line;
  for (int head = 0; head < heads; ++head) {
    for (const WorkUnit& unit : units) line.push_back(unit.tiles);
  }
  return LoadsOf(CutEvenly(line, slots));
}

}  // namespace

std::optional<AttentionKernel> PlannedKernel(const AttentionCase& problem) {
  const GpuLimits limits = LimitsOf(*cost::FindHardware("H200"));
  if (problem.decode) {
    const auto plan = PlanDecodeAttention(problem.DecodeShape(), {}, limits);
    if (plan) return plan->kernel;
  } else {
    const auto plan = PlanPrefillAttention(problem.PrefillShape(), {}, limits);
    if (plan) return plan->kernel;
  }
  return std::nullopt;
}

std::vector<std::string_view> PolicyNames() { return {kNames.begin(), kNames.end()}; }

QueryKeyBlock HandbookIoBlock(double hbm_gb_per_s, double global_gb_per_s) {
  if (hbm_gb_per_s > 1.2 * global_gb_per_s) {
    const int rows = std::min(128, static_cast<int>(std::ceil(std::sqrt(hbm_gb_per_s / 25.6))));
    return {rows, rows / 2};
  }
  return {64, 64};
}

Result<PolicyRow> EvaluatePolicy(std::string_view name, const AttentionCase& problem,
                                 const cost::Hardware& hardware, double global_gb_per_s) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    return Err(Code::kInvalidArgument, "policy \"{}\": expected one of {}", name,
               fmt::join(kNames, ", "));
  }
  const AttentionKernel kernel = PlannedKernel(problem).value_or(AttentionKernel{});
  const double hbm = hardware.memory_bytes_per_s / 1e9;
  PolicyRow row{.name = std::string(name)};
  row.rows = kernel.rows != 0 ? kernel.rows : 64;
  row.keys = kernel.keys != 0 ? kernel.keys : 64;
  std::string mapping = problem.decode ? "even cut" : "counter";
  if (name == "handbook-blocks") {
    row.claim = "A4";
    struct Named {
      std::string_view gpu;
      int keys;
    };
    row.keys = 0;
    for (const Named& named : {Named{"A100", 64}, {"H100", 256}, {"H200", 256}, {"L40S", 128}}) {
      if (hardware.name.starts_with(named.gpu)) row.keys = named.keys;
    }
    if (row.keys == 0) {
      row.obstacle = fmt::format("names A100, H100 and L40S, not {}", hardware.name);
      return row;
    }
  } else if (name == "handbook-io") {
    row.claim = "B4";
    const QueryKeyBlock block = HandbookIoBlock(hbm, global_gb_per_s > 0 ? global_gb_per_s : hbm);
    row.rows = block.rows;
    row.keys = block.keys;
  } else if (name.starts_with("handbook-hash")) {
    row.claim = "B7";
    row.keys = name.ends_with("64") ? 64 : 128;
    mapping = "hash";
  } else if (name == "handbook-static") {
    row.claim = "A8";
    mapping = "head to block";
  }
  row.shared_bytes = SharedBytes(problem, row.rows, row.keys);
  row.obstacle = Obstacle(problem, row, kernel, hardware);

  const cost::AttentionCall& call = problem.call;
  const int per_sm = std::max(1, kernel.blocks_per_sm);
  const int slots = hardware.num_sms * per_sm;
  int tile_queries = row.rows;
  int heads = call.heads;
  if (problem.decode) {
    tile_queries = problem.DecodeShape().max_query_tokens;
    const int rows = tile_queries * (call.heads / call.kv_heads);
    heads = call.kv_heads * ((rows + row.rows - 1) / row.rows);
  }
  // Tiles that the lists cannot hold (of 14 x 7, say) are counted all the same, without a mask.
  AttentionCase counted = problem;
  if (row.keys % 64 != 0) counted.call.window = -1;
  FATHOM_ASSIGN_OR_RETURN(const std::vector<WorkUnit> units,
                          ListUnits(counted, tile_queries, row.keys));
  const Loads loads = Deal(name, problem, units, heads, slots);
  row.schedule = {.mapping = mapping,
                  .blocks = name == "handbook-static"
                                ? static_cast<int64_t>(call.sequences.size()) * heads
                                : slots,
                  .slots = slots,
                  .occupancy = static_cast<double>(kernel.threads) * per_sm /
                               cost::SmLimitsOf(hardware).threads,
                  .balance = loads.balance(),
                  .busy = loads.busy()};
  row.schedule.waves = static_cast<double>(row.schedule.blocks) / slots;
  return row;
}

}  // namespace fathom::ops
