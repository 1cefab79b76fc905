#include "ops/cuda/explain.h"

#include <algorithm>

#include "base/strings.h"

namespace fathom::ops {
namespace {

// Work that no CUDA kernel takes is refused by name.
std::string WhyNoKernel(const AttentionCase& problem) {
  if (!problem.decode && problem.call.cache != cost::CacheEncoding::kBF16) {
    return "none: no CUDA prefill kernel reads a quantised cache";
  }
  if (problem.call.expanded_from != 0 && problem.call.window >= 0) {
    return "none: MLA prefill from latent pages has no window";
  }
  return {};
}

struct Planned {
  std::string text;
  std::optional<ScheduleReport> schedule;
  AttentionKernel kernel;
  int row_tiles = 1;         // decode: row tiles of a kv head
  double partial_bytes = 0;  // written, and read again
};

Planned PlanDecode(const AttentionCase& problem, const cost::Hardware& hardware,
                   const ExplainOptions& options, const std::vector<WorkUnit>& units) {
  const auto plan = PlanDecodeAttention(
      problem.DecodeShape(), {.reduction = options.reduction, .tuning = options.decode_tuning},
      LimitsOf(hardware));
  if (!plan) return {.text = "none: " + plan.error().message};
  Planned planned{.text = plan->Describe(),
                  .schedule = ReportDecode(*plan, units, hardware),
                  .kernel = plan->kernel,
                  .row_tiles = plan->row_tiles};
  // A sequence that one part holds whole is written at once; the others leave a result a part.
  const int heads = plan->shape.tile_lists ? 1 : plan->shape.num_kv_heads;
  planned.partial_bytes = std::max(0, plan->num_slots - plan->line_size) * 1.0 * heads *
                          plan->row_tiles * plan->rows *
                          (problem.call.dim_v * plan->PartialElementBytes() + 2 * 4.0);
  return planned;
}

Planned PlanPrefill(const AttentionCase& problem, const cost::Hardware& hardware,
                    const ExplainOptions& options, const std::vector<WorkUnit>& units) {
  if (problem.call.expanded_from != 0) {
    const auto plan = PlanMlaPrefill(problem.LatentPrefillShape(),
                                     {.tuning = options.prefill_tuning}, LimitsOf(hardware));
    if (!plan) return {.text = "none: " + plan.error().message};
    Planned planned{.text = plan->Describe(), .kernel = plan->prefill.kernel};
    // Where there are parts, each has a schedule of its own.
    if (plan->num_parts == 1) planned.schedule = ReportPrefill(plan->prefill, units, hardware);
    const double states = plan->num_parts == 1 ? 0 : plan->num_parts;
    planned.partial_bytes =
        states * plan->shape.num_tokens * plan->shape.num_heads * (plan->shape.v_dim * 2.0 + 4.0);
    return planned;
  }
  const auto plan = PlanPrefillAttention(problem.PrefillShape(), {.tuning = options.prefill_tuning},
                                         LimitsOf(hardware));
  if (!plan) return {.text = "none: " + plan.error().message};
  return {.text = plan->Describe(),
          .schedule = ReportPrefill(*plan, units, hardware),
          .kernel = plan->kernel};
}

}  // namespace

Result<Explanation> Explain(const AttentionCase& problem, const cost::Hardware& hardware,
                            const ExplainOptions& options) {
  const cost::AttentionCall& call = problem.call;
  Explanation e;
  e.name = problem.Name();
  e.gpu = hardware.name;
  e.floor = cost::AttentionFloor(call);
  e.expansion_flops = cost::ExpansionFlops(call);
  e.roofs = cost::AttentionRoofs(call, hardware);
  e.ridge = hardware.bf16_flops_per_s / hardware.memory_bytes_per_s;
  e.unfused = cost::UnfusedBytes(call);
  e.measured_us = options.measured_us;
  e.plan = WhyNoKernel(problem);

  Planned planned;
  if (const std::optional<AttentionKernel> known = PlannedKernel(problem)) {
    const int tile_queries = problem.decode ? problem.DecodeShape().max_query_tokens : known->rows;
    FATHOM_ASSIGN_OR_RETURN(const std::vector<WorkUnit> units,
                            ListUnits(problem, tile_queries, known->keys));
    if (e.plan.empty()) {
      planned = problem.decode ? PlanDecode(problem, hardware, options, units)
                               : PlanPrefill(problem, hardware, options, units);
      e.plan = planned.text;
      e.schedule = planned.schedule;
    }
    const AttentionKernel kernel = planned.kernel.rows != 0 ? planned.kernel : *known;
    const int rows = tile_queries * (call.heads / call.kv_heads);
    const double row_tiles = problem.decode ? (rows + kernel.rows - 1) / kernel.rows : 1;
    const double heads = problem.decode ? call.kv_heads * row_tiles : call.heads;
    AttentionCase dense = problem;
    dense.call.window = -1;
    FATHOM_ASSIGN_OR_RETURN(const std::vector<WorkUnit> all,
                            ListUnits(dense, tile_queries, kernel.keys));
    Explanation::Kernel k{.kernel = kernel};
    for (const WorkUnit& unit : units) k.tiles += unit.tiles;
    for (const WorkUnit& unit : all) k.dense_tiles += unit.tiles;
    k.tiles *= static_cast<int64_t>(heads);
    k.dense_tiles *= static_cast<int64_t>(heads);
    const auto visits = static_cast<double>(k.tiles);
    k.fused = cost::FusedBytes(
        call, {.rows = kernel.rows, .keys = kernel.keys, .swapped = problem.decode}, visits,
        static_cast<double>(units.size()) * heads, planned.partial_bytes);
    k.flops = visits * 2 * kernel.rows * kernel.keys * (call.dim_qk + call.dim_v) +
              cost::ExpansionFlops(call);
    k.shared_us =
        k.fused.shared /
        (cost::SmLimitsOf(hardware).shared_bytes_per_clock * hardware.num_sms * hardware.clock_hz) *
        1e6;
    k.shared = problem.decode ? DecodeSharedAccesses(kernel) : PrefillSharedAccesses(kernel);
    e.kernel = std::move(k);
  } else if (e.plan.empty()) {
    e.plan = problem.decode ? PlanDecode(problem, hardware, options, {}).text
                            : PlanPrefill(problem, hardware, options, {}).text;
  }

  const std::vector<std::string_view> all = PolicyNames();
  const std::vector<std::string> names = options.policies.empty()
                                             ? std::vector<std::string>(all.begin(), all.end())
                                             : options.policies;
  for (const std::string& name : names) {
    FATHOM_ASSIGN_OR_RETURN(PolicyRow row,
                            EvaluatePolicy(name, problem, hardware, options.global_gb_per_s));
    if (name == "fathom") {
      row.obstacle = e.plan.starts_with("none") ? "no plan on this GPU, see above" : "";
    }
    e.policies.push_back(std::move(row));
  }
  return e;
}

std::string ToText(const Explanation& e) {
  std::string text;
  const auto line = [&text]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    text += fmt::format(format, std::forward<Args>(args)...) + "\n";
  };
  const auto bytes = [](double value) { return HumanBytes(static_cast<uint64_t>(value)); };
  line("{} on {}", e.name, e.gpu);
  line(
      "  work   {:.4g} GFLOP in unmasked pairs{}, {} through memory: {:.3g} FLOP a byte (ridge "
      "{:.0f})",
      (e.floor.flops - e.expansion_flops) / 1e9,
      e.expansion_flops > 0 ? fmt::format(" and {:.4g} to expand latents", e.expansion_flops / 1e9)
                            : "",
      bytes(e.floor.bytes), e.floor.flops / e.floor.bytes, e.ridge);
  for (size_t i = 0; i < e.roofs.size(); ++i) {
    line("  {}  {:>9.2f} us at {:.4g} {}/s of {}{}", i == 0 ? "roofs" : "     ",
         e.roofs[i].seconds() * 1e6, e.roofs[i].per_s / 1e12,
         e.roofs[i].name == "HBM"            ? "TB"
         : e.roofs[i].name == "tensor cores" ? "TFLOP"
                                             : "T exp2",
         e.roofs[i].name, i == 0 ? ": binds" : "");
  }
  if (e.measured_us > 0) {
    line("  measured {:.2f} us: {:.1f} % of the floor's {:.2f} us", e.measured_us,
         100 * e.floor_us() / e.measured_us, e.floor_us());
  }
  line("");
  line("  {:<11} {:>11} {:>11} {:>8}", "bytes", "fused", "unfused", "ratio");
  const auto level = [&](const char* name, double cost::LevelBytes::*field) {
    const double fused = e.kernel ? e.kernel->fused.*field : 0;
    line("  {:<11} {:>11} {:>11} {:>8}", name, e.kernel ? bytes(fused) : "-",
         bytes(e.unfused.*field),
         fused > 0 ? fmt::format("{:.1f}x", e.unfused.*field / fused) : "-");
  };
  level("HBM", &cost::LevelBytes::hbm);
  level("L2", &cost::LevelBytes::l2);
  level("shared", &cost::LevelBytes::shared);
  level("registers", &cost::LevelBytes::registers);
  line("");
  line("  plan     {}", e.plan);
  if (e.kernel) {
    const AttentionKernel& kernel = e.kernel->kernel;
    line(
        "  tiles    {} x {} ({}), {} threads, {} of shared memory a block; {} of {} tiles "
        "visited",
        kernel.rows, kernel.keys, kernel.family, kernel.threads,
        bytes(static_cast<double>(kernel.shared_bytes)), e.kernel->tiles, e.kernel->dense_tiles);
    line(
        "           {:.4g} GFLOP in whole tiles ({:.1f} % of them kept); shared memory alone "
        "takes {:.2f} us",
        e.kernel->flops / 1e9, 100 * e.floor.flops / e.kernel->flops, e.kernel->shared_us);
  }
  if (e.schedule) {
    const ScheduleReport& s = *e.schedule;
    line("  schedule {}", s.mapping);
    line(
        "           {} blocks on {} slots: {:.2f} waves, occupancy {:.0f} %, balance {:.3f} "
        "(largest / even share), busy {:.0f} %",
        s.blocks, s.slots, s.waves, 100 * s.occupancy, s.balance, 100 * s.busy);
  }
  if (e.kernel && !e.kernel->shared.empty()) {
    line("");
    line("  {:<42} {:>10} {:>7} {:>12}", "shared-memory accesses, a tile", "wavefronts", "excess",
         "unswizzled");
    for (const SharedAccess& access : e.kernel->shared) {
      line("  {:<42} {:>10} {:>7} {:>12}{}", access.what, access.found.count, access.found.excess(),
           access.plain.count, access.main_loop ? "" : "  once an item");
    }
  }
  line("");
  line("  {:<18} {:>5} {:>9} {:<14} {:>8} {:>8} {:>6}  {}", "policy", "claim", "tile", "mapping",
       "blocks", "balance", "busy", "can run");
  for (const PolicyRow& row : e.policies) {
    line("  {:<18} {:>5} {:>9} {:<14} {:>8} {:>8.3f} {:>4.0f} %  {}", row.name,
         row.claim.empty() ? "-" : row.claim, fmt::format("{} x {}", row.rows, row.keys),
         row.schedule.mapping, row.schedule.blocks, row.schedule.balance, 100 * row.schedule.busy,
         row.obstacle.empty() ? "yes" : "no: " + row.obstacle);
  }
  return text;
}

}  // namespace fathom::ops
