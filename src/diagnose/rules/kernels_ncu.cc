// Rules over kernels that Nsight Compute replayed: the counters decide, not the names.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/rules/families.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// With mma.sync a Hopper tensor core that is always busy reaches about this much of wgmma's rate.
constexpr double kWarpProductRate = 0.62;

class Counters {
 public:
  Counters(const Timeline& timeline, const ProfiledKernel& kernel)
      : timeline_(timeline), kernel_(kernel) {}

  // The first of several names that the page has: versions rename their metrics.
  double First(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (const auto value = timeline_.Metric(kernel_, name); value && !std::isnan(*value)) {
        return *value;
      }
    }
    return kNaN;
  }
  double Get(std::string_view name) const { return First({name}); }

  // Warps that wait for `reason`, on average, for each instruction issued.
  double Stall(std::string_view reason) const {
    return Get("smsp__average_warps_issue_stalled_" + std::string(reason) +
               "_per_issue_active.ratio");
  }
  // The reasons that hold most warps, most first; "selected" and "not_selected" are no stalls.
  std::vector<std::pair<double, std::string_view>> TopStalls() const {
    static constexpr std::array<std::string_view, 17> kReasons = {"barrier",
                                                                  "branch_resolving",
                                                                  "dispatch_stall",
                                                                  "drain",
                                                                  "gmma",
                                                                  "imc_miss",
                                                                  "lg_throttle",
                                                                  "long_scoreboard",
                                                                  "math_pipe_throttle",
                                                                  "membar",
                                                                  "mio_throttle",
                                                                  "misc",
                                                                  "no_instruction",
                                                                  "short_scoreboard",
                                                                  "sleeping",
                                                                  "tex_throttle",
                                                                  "wait"};
    std::vector<std::pair<double, std::string_view>> stalls;
    for (const std::string_view reason : kReasons) {
      const double value = Stall(reason);
      if (!std::isnan(value)) stalls.emplace_back(value, reason);
    }
    std::sort(stalls.rbegin(), stalls.rend());
    return stalls;
  }
  bool IsTopStall(std::initializer_list<std::string_view> reasons, size_t among) const {
    const auto top = TopStalls();
    for (size_t i = 0; i < std::min(among, top.size()); ++i) {
      if (std::find(reasons.begin(), reasons.end(), top[i].second) != reasons.end()) return true;
    }
    return false;
  }
  double DurationNs() const { return First({"gpu__time_duration.sum", "Duration"}); }
  double TensorShare() const {
    return First({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
                  "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"}) /
           100;
  }
  double DramShare() const {
    return First({"dram__throughput.avg.pct_of_peak_sustained_elapsed",
                  "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput"}) /
           100;
  }
  double L2Share() const {
    return First({"lts__throughput.avg.pct_of_peak_sustained_elapsed",
                  "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"}) /
           100;
  }
  // Whether all its matrix products are mma.sync, none of them Hopper's wgmma.
  bool OnlyWarpProducts() const {
    return Get("sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_elapsed") > 0 &&
           !(Get("sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_elapsed") > 0);
  }

 private:
  const Timeline& timeline_;
  const ProfiledKernel& kernel_;
};

// How long the kernel would take if the unit that a rule complains about needed only `unit_share`
// of its present time: until the next unit is busy all the time, so a gain derived from it is an
// upper bound. NaN when the page has no other unit to go by.
double BoundNs(const Counters& counters, double unit_share) {
  const double dram = counters.DramShare();
  const double l2 = counters.L2Share();
  if (std::isnan(dram) && std::isnan(l2)) return kNaN;
  const double busiest = std::max(std::isnan(dram) ? 0 : dram, std::isnan(l2) ? 0 : l2);
  return counters.DurationNs() * std::max(busiest, unit_share);
}

double SavingMs(const Counters& counters, double bound_ns) {
  return std::isnan(bound_ns) ? kNaN : std::max(0.0, counters.DurationNs() - bound_ns) / 1e6;
}

// Replayed kernels have no phase and no step.
Finding KernelFinding(std::string_view id) {
  Finding finding{.id = id, .phase = Phase::kUnknown};
  finding.confidence = 0.9;
  finding.saving_ms_per_step = kNaN;
  return finding;
}

bool NoKernels(const RuleContext& context, std::string_view id, Findings& findings) {
  if (!context.timeline.profiled_kernels.empty()) return false;
  findings.abstained.push_back({id, {"abstain.no_ncu", {}}});
  return true;
}

std::string ShortName(std::string_view name) {
  constexpr size_t kMax = 90;
  return name.size() <= kMax ? std::string(name) : std::string(name.substr(0, kMax)) + "...";
}

}  // namespace

void BankConflict(const RuleContext& context, Findings& findings) {
  if (NoKernels(context, "bank-conflict", findings)) return;
  Finding finding = KernelFinding("bank-conflict");
  bool any_counters = false;
  double worst = 0;
  for (const ProfiledKernel& kernel : context.timeline.profiled_kernels) {
    const Counters counters(context.timeline, kernel);
    const double wavefronts = counters.Get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum");
    double excess = counters.First({"derived__memory_l1_wavefronts_shared_excessive",
                                    "memory_l1_wavefronts_shared_excessive"});
    if (std::isnan(excess)) {
      excess = counters.Get("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum");
    }
    if (std::isnan(wavefronts) || std::isnan(excess)) continue;
    any_counters = true;
    const double share = wavefronts > 0 ? excess / wavefronts : 0;
    // Conflicts that no warp waits for cost nothing.
    const bool waited_for = counters.IsTopStall({"short_scoreboard", "mio_throttle"}, 2);
    if (share < context.thresholds["bank-conflict.warn_share"] || !waited_for) continue;
    worst = std::max(worst, share);
    const auto stalls = counters.TopStalls();
    // The data stage of L1 serves shared memory: it works for the excess, too.
    const double stage =
        counters.Get("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed") / 100;
    const double bound_ns = BoundNs(counters, std::isnan(stage) ? 1 - share : stage * (1 - share));
    finding.evidence.push_back({.text = {"bank-conflict.evidence",
                                         {{"kernel", ShortName(context.timeline.Name(kernel.name))},
                                          {"share", Percent(share)},
                                          {"excess", Number(excess)},
                                          {"wavefronts", Number(wavefronts)},
                                          {"stall", std::string(stalls.front().second)},
                                          {"us", Number(counters.DurationNs() / 1e3)}}},
                                .value = share,
                                .unit = "share",
                                .saving_ms_per_launch = SavingMs(counters, bound_ns)});
  }
  if (!any_counters) {
    findings.abstained.push_back({"bank-conflict", {"abstain.no_shared_counters", {}}});
    return;
  }
  if (finding.evidence.empty()) return;
  const bool severe = worst >= context.thresholds["bank-conflict.severe_share"];
  finding.severity = severe ? Severity::kSevere : Severity::kWarn;
  finding.title = {"bank-conflict.title",
                   {{"count", std::to_string(finding.evidence.size())}, {"share", Percent(worst)}}};
  finding.thresholds = {
      context.thresholds.Used(severe ? "bank-conflict.severe_share" : "bank-conflict.warn_share"),
      context.thresholds.Used("bank-conflict.handbook_ratio_moderate"),
      context.thresholds.Used("bank-conflict.handbook_ratio_severe")};
  finding.change = {"bank-conflict.change", {}};
  finding.risk = {"bank-conflict.risk", {}};
  finding.undo = {"bank-conflict.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void TensorCore(const RuleContext& context, Findings& findings) {
  if (NoKernels(context, "tensor-core", findings)) return;
  Finding finding = KernelFinding("tensor-core");
  bool any_counters = false;
  bool severe = false;
  for (const ProfiledKernel& kernel : context.timeline.profiled_kernels) {
    const std::string_view name = context.timeline.Name(kernel.name);
    if (ClassifyKernelName(name) != KernelClass::kGemm) continue;
    if (name.find("splitKreduce") != std::string_view::npos) continue;  // adds, does not multiply
    const Counters counters(context.timeline, kernel);
    const double tensor = counters.TensorShare();
    if (std::isnan(tensor)) continue;
    any_counters = true;
    const double dram = counters.DramShare();
    const double l2 = counters.L2Share();
    // Near a memory roof the tensor cores are right to wait.
    const double memory = std::max(std::isnan(dram) ? 0 : dram, std::isnan(l2) ? 0 : l2);
    const double bytes = counters.Get("dram__bytes_read.sum");
    const double rate = bytes / counters.DurationNs();  // GB/s
    const bool memory_bound =
        memory >= context.thresholds["tensor-core.memory_bound_share"] ||
        (memory == 0 && rate >= context.thresholds["tensor-core.memory_bound_gb_per_s"]);
    if (memory_bound || tensor >= context.thresholds["tensor-core.warn_share"]) continue;
    const int device = kernel.compute_major * 10 + kernel.compute_minor;
    const int made_for = ArchitectureInName(name);
    const bool misaligned = name.find("align1") != std::string_view::npos ||
                            name.find("align2") != std::string_view::npos;
    const bool simt =
        name.find("simt") != std::string_view::npos || name.find("sgemm") != std::string_view::npos;
    const bool old = device != 0 && made_for != 0 && made_for / 10 < device / 10;
    const bool small = kernel.grid.count() != 0 && kernel.grid.count() < 16;
    if (small && !misaligned && !simt && !old) continue;  // too little work for the whole GPU
    severe = severe || tensor < context.thresholds["tensor-core.severe_share"];
    // The same products by the device's own instructions. Ordinary cores leave no count of them.
    const bool warp_products = device / 10 == 9 && counters.OnlyWarpProducts();
    const double bound_ns =
        simt ? kNaN : BoundNs(counters, tensor * (warp_products ? kWarpProductRate : 1));
    finding.evidence.push_back({.text = {misaligned ? "tensor-core.evidence.misaligned"
                                         : simt     ? "tensor-core.evidence.simt"
                                         : old      ? "tensor-core.evidence.old"
                                                    : "tensor-core.evidence",
                                         {{"kernel", ShortName(name)},
                                          {"tensor", Percent(tensor)},
                                          {"rate", Number(rate)},
                                          {"made_for", std::to_string(made_for)},
                                          {"device", std::to_string(device)},
                                          {"us", Number(counters.DurationNs() / 1e3)}}},
                                .value = tensor,
                                .unit = "share",
                                .saving_ms_per_launch = SavingMs(counters, bound_ns)});
  }
  if (!any_counters) {
    findings.abstained.push_back({"tensor-core", {"abstain.no_tensor_counters", {}}});
    return;
  }
  if (finding.evidence.empty()) return;
  finding.severity = severe ? Severity::kSevere : Severity::kWarn;
  finding.title = {"tensor-core.title", {{"count", std::to_string(finding.evidence.size())}}};
  finding.thresholds = {
      context.thresholds.Used(severe ? "tensor-core.severe_share" : "tensor-core.warn_share"),
      context.thresholds.Used("tensor-core.memory_bound_share")};
  finding.change = {"tensor-core.change", {}};
  finding.risk = {"tensor-core.risk", {}};
  finding.undo = {"tensor-core.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void RegisterPressure(const RuleContext& context, Findings& findings) {
  if (NoKernels(context, "register-pressure", findings)) return;
  Finding finding = KernelFinding("register-pressure");
  bool any_counters = false;
  for (const ProfiledKernel& kernel : context.timeline.profiled_kernels) {
    const Counters counters(context.timeline, kernel);
    const double spills = counters.First({"sass__inst_executed_register_spilling_mem_local",
                                          "derived__local_spilling_requests",
                                          "smsp__sass_inst_executed_op_local_ld.sum"});
    const double instructions =
        counters.First({"smsp__inst_executed.sum", "sm__inst_executed.sum"});
    const double by_registers = counters.Get("launch__occupancy_limit_registers");
    const double achieved = counters.Get("sm__warps_active.avg.pct_of_peak_sustained_active") / 100;
    const double theoretical =
        counters.First({"sm__maximum_warps_per_active_cycle_pct", "Theoretical Occupancy"}) / 100;
    if (std::isnan(spills) && std::isnan(by_registers)) continue;
    any_counters = true;
    const double spill_share = instructions > 0 ? spills / instructions : 0;
    if (spill_share >= context.thresholds["register-pressure.spill_share"]) {
      finding.evidence.push_back(
          {.text = {"register-pressure.evidence.spill",
                    {{"kernel", ShortName(context.timeline.Name(kernel.name))},
                     {"share", Percent(spill_share)},
                     {"registers", Number(counters.Get("launch__registers_per_thread"))}}},
           .value = spill_share,
           .unit = "share"});
      continue;
    }
    // Few blocks fit because of registers, and the warps that are there wait for memory or math:
    // more of them would help. Warp-specialised kernels are right at 12-25 % and wait elsewhere.
    const double by_shared = counters.Get("launch__occupancy_limit_shared_mem");
    const double by_warps = counters.Get("launch__occupancy_limit_warps");
    const bool registers_limit = by_registers < by_shared && by_registers < by_warps;
    const bool waits = counters.IsTopStall({"long_scoreboard", "math_pipe_throttle"}, 1);
    if (registers_limit && waits && theoretical < 0.5 && achieved < 0.8 * theoretical) {
      finding.evidence.push_back(
          {.text = {"register-pressure.evidence.occupancy",
                    {{"kernel", ShortName(context.timeline.Name(kernel.name))},
                     {"achieved", Percent(achieved)},
                     {"theoretical", Percent(theoretical)},
                     {"stall", std::string(counters.TopStalls().front().second)}}},
           .value = achieved,
           .unit = "share"});
    }
  }
  if (!any_counters) {
    findings.abstained.push_back({"register-pressure", {"abstain.no_occupancy_counters", {}}});
    return;
  }
  if (finding.evidence.empty()) return;
  finding.severity = Severity::kWarn;
  finding.title = {"register-pressure.title", {{"count", std::to_string(finding.evidence.size())}}};
  finding.thresholds = {context.thresholds.Used("register-pressure.spill_share")};
  finding.change = {"register-pressure.change", {}};
  finding.risk = {"register-pressure.risk", {}};
  finding.undo = {"register-pressure.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void Uncoalesced(const RuleContext& context, Findings& findings) {
  if (NoKernels(context, "uncoalesced", findings)) return;
  Finding finding = KernelFinding("uncoalesced");
  bool any_counters = false;
  for (const ProfiledKernel& kernel : context.timeline.profiled_kernels) {
    const Counters counters(context.timeline, kernel);
    for (const bool store : {false, true}) {
      const std::string op = store ? "op_st" : "op_ld";
      const double sectors = counters.Get("l1tex__t_sectors_pipe_lsu_mem_global_" + op + ".sum");
      const double requests = counters.Get("l1tex__t_requests_pipe_lsu_mem_global_" + op + ".sum");
      if (std::isnan(sectors) || std::isnan(requests) || requests == 0) continue;
      any_counters = true;
      // Bytes that a warp's instruction asked for, in sectors of 32: the ideal for its access
      // width.
      const double used =
          counters.Get("smsp__sass_average_data_bytes_per_sector_mem_global_" + op + ".ratio");
      const double ratio = std::isnan(used) || used <= 0 ? kNaN : 32 / used;
      const double l1 = counters.First({"l1tex__throughput.avg.pct_of_peak_sustained_active",
                                        "l1tex__throughput.avg.pct_of_peak_sustained_elapsed"}) /
                        100;
      const double l2 = counters.First({"lts__throughput.avg.pct_of_peak_sustained_elapsed"}) / 100;
      const double busiest = std::max(std::isnan(l1) ? 0 : l1, std::isnan(l2) ? 0 : l2);
      if (!(ratio >= context.thresholds["uncoalesced.sectors_ratio"]) ||
          busiest < context.thresholds["uncoalesced.cache_busy_share"]) {
        continue;
      }
      finding.evidence.push_back(
          {.text = {store ? "uncoalesced.evidence.store" : "uncoalesced.evidence.load",
                    {{"kernel", ShortName(context.timeline.Name(kernel.name))},
                     {"per_request", Number(sectors / requests)},
                     {"ratio", Number(ratio)},
                     {"busy", Percent(busiest)}}},
           .value = ratio,
           .unit = "ratio"});
    }
  }
  if (!any_counters) {
    findings.abstained.push_back({"uncoalesced", {"abstain.no_sector_counters", {}}});
    return;
  }
  if (finding.evidence.empty()) return;
  finding.severity = Severity::kWarn;
  finding.title = {"uncoalesced.title", {{"count", std::to_string(finding.evidence.size())}}};
  finding.thresholds = {context.thresholds.Used("uncoalesced.sectors_ratio")};
  finding.change = {"uncoalesced.change", {}};
  finding.risk = {"uncoalesced.risk", {}};
  finding.undo = {"uncoalesced.undo", {}};
  findings.findings.push_back(std::move(finding));
}

bool UnevenProfiledKernels(const RuleContext& context, Findings& findings) {
  Finding finding = KernelFinding("head-imbalance");
  bool judged = false;
  for (const ProfiledKernel& kernel : context.timeline.profiled_kernels) {
    const std::string_view name = context.timeline.Name(kernel.name);
    if (ClassifyKernelName(name) != KernelClass::kAttention) continue;
    const Counters counters(context.timeline, kernel);
    const double achieved =
        counters.First({"sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"});
    const double theoretical =
        counters.First({"sm__maximum_warps_per_active_cycle_pct", "Theoretical Occupancy"});
    const double waves = counters.First({"launch__waves_per_multiprocessor", "Waves Per SM"});
    const double uneven =
        counters.Get("sm__cycles_active.max") / counters.Get("sm__cycles_active.avg");
    if (std::isnan(achieved) || std::isnan(theoretical) || std::isnan(waves) ||
        std::isnan(uneven)) {
      continue;
    }
    judged = true;
    // Low occupancy alone is how warp-specialised kernels work; SMs that finish early are not.
    if (achieved >= context.thresholds["head-imbalance.achieved_share"] * theoretical ||
        waves <= 1 || uneven <= context.thresholds["head-imbalance.cycles_ratio"]) {
      continue;
    }
    finding.evidence.push_back(
        {.text = {"head-imbalance.evidence.counters",
                  {{"kernel", ShortName(name)},
                   {"achieved", Percent(achieved / 100)},
                   {"theoretical", Percent(theoretical / 100)},
                   {"waves", Number(waves)},
                   {"uneven", Number(uneven)}}},
         .value = uneven,
         .unit = "ratio",
         .saving_ms_per_launch = SavingMs(counters, counters.DurationNs() / uneven)});
  }
  if (finding.evidence.empty()) return judged;
  finding.severity = Severity::kWarn;
  finding.title = {"head-imbalance.title.counters",
                   {{"count", std::to_string(finding.evidence.size())}}};
  finding.thresholds = {context.thresholds.Used("head-imbalance.cycles_ratio"),
                        context.thresholds.Used("head-imbalance.achieved_share"),
                        context.thresholds.Used("head-imbalance.handbook_occupancy")};
  finding.change = {"head-imbalance.change.tail", {}};
  finding.risk = {"head-imbalance.risk", {}};
  finding.undo = {"head-imbalance.undo", {}};
  findings.findings.push_back(std::move(finding));
  return judged;
}

}  // namespace fathom::diagnose
