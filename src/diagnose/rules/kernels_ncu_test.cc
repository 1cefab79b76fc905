// Rules over Nsight Compute's counters, on pages made by code: the same kernel with one counter
// changed at a time.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "diagnose/report/catalogue.h"
#include "diagnose/report/describe.h"
#include "diagnose/rules/rule_test_util.h"

namespace fathom::diagnose {
namespace {

using Metrics = std::map<std::string, double>;

// One kernel's page; `changed` replaces and adds metrics of `base`.
Diagnosis DiagnosePage(std::string_view kernel_name, Metrics base, const Metrics& changed) {
  for (const auto& [name, value] : changed) base[name] = value;
  Timeline t;
  const SourceId source = t.AddSource("page.csv", "ncu-csv");
  ProfiledKernel kernel;
  kernel.name = t.strings.Intern(kernel_name);
  kernel.source = source;
  kernel.first_metric = static_cast<uint32_t>(t.kernel_metrics.size());
  kernel.num_metrics = static_cast<uint32_t>(base.size());
  for (const auto& [name, value] : base) {
    t.kernel_metrics.push_back({.name = t.strings.Intern(name), .value = value});
  }
  t.profiled_kernels.push_back(kernel);
  return Diagnose(std::move(t), Thresholds::Default());
}

std::string EvidenceOf(const Diagnosis& d, std::string_view id) {
  const Finding* finding = Find(d, id);
  return finding == nullptr ? "" : EvidenceLine(finding->evidence.at(0), Language::kEnglish);
}

TEST(RegisterPressure, SpillsInALoop) {
  const Metrics base = {{"gpu__time_duration.sum", 50e3},
                        {"smsp__inst_executed.sum", 1e6},
                        {"launch__registers_per_thread", 255},
                        {"sass__inst_executed_register_spilling_mem_local", 0}};
  const auto run = [&](double spills) {
    return DiagnosePage("kernel", base,
                        {{"sass__inst_executed_register_spilling_mem_local", spills}});
  };
  EXPECT_NE(EvidenceOf(run(50'000), "register-pressure").find("5.0%"), std::string::npos);
  EXPECT_TRUE(IsClean(run(1000), "register-pressure"));
  EXPECT_TRUE(Abstained(DiagnosePage("kernel", {{"gpu__time_duration.sum", 50e3}}, {}),
                        "register-pressure"));
}

TEST(RegisterPressure, FewWarpsThatWait) {
  const Metrics base = {
      {"launch__occupancy_limit_registers", 1},
      {"launch__occupancy_limit_shared_mem", 8},
      {"launch__occupancy_limit_warps", 8},
      {"sm__warps_active.avg.pct_of_peak_sustained_active", 15},
      {"sm__maximum_warps_per_active_cycle_pct", 25},
      {"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", 5},
      {"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 1}};
  EXPECT_NE(
      EvidenceOf(DiagnosePage("kernel", base, {}), "register-pressure").find("long_scoreboard"),
      std::string::npos);
  for (const Metrics& changed : std::initializer_list<Metrics>{
           {{"launch__occupancy_limit_registers", 8}},                   // something else limits
           {{"sm__warps_active.avg.pct_of_peak_sustained_active", 24}},  // as many as fit
           // Waits at its barriers, as warp-specialised kernels do: more warps would not help.
           {{"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 9}}}) {
    EXPECT_TRUE(IsClean(DiagnosePage("kernel", base, changed), "register-pressure"))
        << changed.begin()->first;
  }
}

TEST(Uncoalesced, MoreSectorsThanAskedForWhileTheCachesAreBusy) {
  const Metrics base = {{"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 32e6},
                        {"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", 1e6},
                        {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", 4},
                        {"l1tex__throughput.avg.pct_of_peak_sustained_active", 90}};
  EXPECT_NE(EvidenceOf(DiagnosePage("gather", base, {}), "uncoalesced").find("8"),
            std::string::npos);
  for (const Metrics& changed : std::initializer_list<Metrics>{
           {{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", 32}},
           {{"l1tex__throughput.avg.pct_of_peak_sustained_active", 20}}}) {
    EXPECT_TRUE(IsClean(DiagnosePage("gather", base, changed), "uncoalesced"))
        << changed.begin()->first;
  }
  EXPECT_TRUE(
      Abstained(DiagnosePage("gather", {{"gpu__time_duration.sum", 50e3}}, {}), "uncoalesced"));
}

TEST(HeadImbalance, SmsThatFinishEarly) {
  const Metrics base = {{"gpu__time_duration.sum", 120e3},
                        {"dram__throughput.avg.pct_of_peak_sustained_elapsed", 10},
                        {"sm__warps_active.avg.pct_of_peak_sustained_active", 20},
                        {"sm__maximum_warps_per_active_cycle_pct", 50},
                        {"launch__waves_per_multiprocessor", 3},
                        {"sm__cycles_active.max", 150e3},
                        {"sm__cycles_active.avg", 100e3}};
  const char* name = "flash_fwd_kernel";
  const Diagnosis uneven = DiagnosePage(name, base, {});
  ASSERT_NE(Find(uneven, "head-imbalance"), nullptr);
  EXPECT_NE(EvidenceOf(uneven, "head-imbalance").find("1.50 times"), std::string::npos);
  EXPECT_NEAR(Find(uneven, "head-imbalance")->evidence[0].saving_ms_per_launch, 0.04, 1e-6);
  for (const Metrics& changed : std::initializer_list<Metrics>{
           {{"sm__cycles_active.max", 110e3}},
           {{"launch__waves_per_multiprocessor", 1}},
           {{"sm__warps_active.avg.pct_of_peak_sustained_active", 45}}}) {
    EXPECT_TRUE(IsClean(DiagnosePage(name, base, changed), "head-imbalance"))
        << changed.begin()->first;
  }
  EXPECT_TRUE(Abstained(DiagnosePage("nvjet_gemm", base, {}), "head-imbalance"));
}

}  // namespace
}  // namespace fathom::diagnose
