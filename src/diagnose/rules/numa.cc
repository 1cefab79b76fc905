// Memory and threads on the wrong NUMA node.
#include "diagnose/understand/numa.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/rules/families.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

// Weights of samples of CPUs and of loads.
struct Sampled {
  double cpu = 0;        // all samples
  double balancing = 0;  // of them, in the kernel's NUMA balancing
  double loads = 0;      // samples, or counts of perf c2c, that say where memory was
  double remote = 0;     // of them, served by another node

  double remote_share() const { return loads > 0 ? remote / loads : 0; }
  double balancing_share() const { return cpu > 0 ? balancing / cpu : 0; }
};

bool IsBalancing(std::string_view symbol) {
  return symbol.find("do_numa_page") != std::string_view::npos ||
         symbol.find("migrate_misplaced") != std::string_view::npos ||
         symbol.find("task_numa_work") != std::string_view::npos;
}

Sampled SampledIn(const Timeline& t) {
  Sampled sampled;
  for (const StackSample& sample : t.stack_samples) {
    const auto weight = static_cast<double>(sample.period);
    sampled.cpu += weight;
    if (sample.level != MemoryLevel::kUnknown) {
      sampled.loads += weight;
      const bool remote =
          sample.level == MemoryLevel::kRemoteRam || sample.level == MemoryLevel::kRemoteCache;
      sampled.remote += remote ? weight : 0;
    }
    for (uint32_t node = sample.stack; node != kNone; node = t.stack_nodes[node].parent) {
      if (!IsBalancing(t.Name(t.stack_nodes[node].symbol))) continue;
      sampled.balancing += weight;
      break;
    }
  }
  // perf c2c's table of loads that missed the last level: where they were served.
  for (const Fact& fact : t.facts) {
    const std::string_view key = t.Name(fact.key);
    const bool remote = key == "c2c.load_remote_dram" || key == "c2c.load_remote_hit" ||
                        key == "c2c.load_remote_hitm";
    if (remote) sampled.remote += fact.number;
    if (remote || key == "c2c.load_local_dram") sampled.loads += fact.number;
  }
  return sampled;
}

}  // namespace

void Numa(const RuleContext& context, Findings& findings) {
  const Timeline& t = context.timeline;
  const Thresholds& limits = context.thresholds;
  Sampled sampled = SampledIn(t);
  const bool few_loads = sampled.loads > 0 && sampled.loads < limits["numa.min_loads"];
  if (few_loads) sampled.loads = sampled.remote = 0;
  const std::vector<SignalSeries> pages = FindSignal(t, Signal::kNumaRemote);
  double remote_pages = 0;
  for (const SignalSeries& s : pages) remote_pages += s.Mean();
  std::vector<GpuThreads> threads = FindGpuThreads(t);
  std::erase_if(threads, [&](const GpuThreads& of_gpu) {
    return of_gpu.readings() < limits["numa.min_thread_readings"];
  });
  const int nodes = NumaNodes(t);

  const bool has_gpus = std::any_of(t.sources.begin(), t.sources.end(), [](const Source& source) {
    return source.numa_nodes > 1 && !source.devices.empty();
  });
  if (has_gpus && threads.empty()) {
    const Text why = {"abstain.no_gpu_threads",
                      {{"least", Number(limits["numa.min_thread_readings"])}}};
    findings.abstained.push_back({"numa", why});
  }
  const bool decided = !pages.empty() || !threads.empty() || sampled.loads > 0;
  if (few_loads && !decided) {
    findings.abstained.push_back({"numa", {"abstain.no_numa_evidence", {}}});
  } else if (!decided && sampled.cpu == 0) {
    // Nothing is far from anything on a machine of one node.
    if (nodes != 1) findings.abstained.push_back({"numa", {"abstain.no_numa_evidence", {}}});
    return;
  }

  Finding finding{.id = "numa", .phase = Phase::kUnknown};
  finding.saving_ms_per_step = std::numeric_limits<double>::quiet_NaN();
  finding.title = {"numa.title", {}};
  const auto add = [&](std::string_view limit, Text text, double value, std::string_view unit) {
    finding.evidence.push_back({.text = std::move(text), .value = value, .unit = unit});
    const bool used = std::any_of(finding.thresholds.begin(), finding.thresholds.end(),
                                  [&](const UsedThreshold& u) { return u.name == limit; });
    if (!used) finding.thresholds.push_back(limits.Used(limit));
  };
  const bool remote = sampled.remote_share() >= limits["numa.remote_share"];
  if (remote) {
    add("numa.remote_share", {"numa.evidence.remote", {{"share", Percent(sampled.remote_share())}}},
        sampled.remote_share(), "share");
    finding.thresholds.push_back(limits.Used("numa.handbook_remote_ns"));
  }
  if (sampled.balancing_share() >= limits["numa.balancing_share"]) {
    add("numa.balancing_share",
        {"numa.evidence.balancing", {{"share", Percent(sampled.balancing_share())}}},
        sampled.balancing_share(), "share");
  }
  if (remote_pages >= limits["numa.remote_pages_per_s"]) {
    add("numa.remote_pages_per_s", {"numa.evidence.pages", {{"pages", Number(remote_pages)}}},
        remote_pages, "1/s");
  }
  for (const GpuThreads& of_gpu : threads) {
    if (of_gpu.far_share() < limits["numa.thread_share"]) continue;
    add("numa.thread_share",
        {of_gpu.listed ? "numa.evidence.threads" : "numa.evidence.threads_of_pid",
         {{"share", Percent(of_gpu.far_share())},
          {"readings", Number(of_gpu.readings())},
          {"gpu", std::to_string(of_gpu.gpu)},
          {"node", std::to_string(of_gpu.node)}}},
        of_gpu.far_share(), "share");
  }
  if (finding.evidence.empty()) {
    // A plain call stack cannot show where memory was: without data sources that part stays open.
    if (!decided && nodes != 1)
      findings.abstained.push_back({"numa", {"abstain.no_data_source", {}}});
    return;
  }
  finding.severity = remote ? Severity::kSevere : Severity::kWarn;
  finding.confidence = remote ? 0.9 : 0.6;
  finding.change = {"numa.change", {}};
  finding.risk = {"numa.risk", {}};
  finding.undo = {"numa.undo", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace fathom::diagnose
