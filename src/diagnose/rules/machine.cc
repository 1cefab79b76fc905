// Rules over sampled counters: what the machine did while it served.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cost/hardware.h"
#include "diagnose/clock.h"
#include "diagnose/rules/families.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// A GPU that is busy for less of a sample's time did not work in it; which roof binds needs some
// samples in which it did.
constexpr double kWorking = 0.05;
constexpr size_t kMinWorkingSamples = 3;
// Of PCIe 5.0 x16 in one direction, where the source does not name the GPU.
constexpr double kDefaultLinkBytesPerSecond = 63e9;

double LinkOf(const Timeline& timeline, SourceId source) {
  for (const DeviceInfo& device : timeline.sources[source].devices) {
    const cost::Hardware* hardware = cost::FindHardware(device.name);
    if (hardware != nullptr && hardware->host_bytes_per_s > 0) return hardware->host_bytes_per_s;
  }
  return kDefaultLinkBytesPerSecond;
}

// The series of the same GPU, if both clocks agree within a sampling period: a finer join would
// invent causes.
const SignalSeries* SameDevice(const Timeline& timeline, const std::vector<SignalSeries>& list,
                               const SignalSeries& other) {
  for (const SignalSeries& s : list) {
    if (s.device != other.device) continue;
    if (s.source == other.source) return &s;
    const int64_t period_ns = Resample(s, other).period_ns;
    if (JoinErrorNs(timeline, s.source, other.source) <= period_ns) return &s;
  }
  return nullptr;
}

}  // namespace

void HostTransfer(const RuleContext& context, Findings& findings) {
  std::vector<SignalSeries> active = FindSignal(context.timeline, Signal::kSmActive);
  if (active.empty()) active = FindSignal(context.timeline, Signal::kGpuBusy);
  const auto least = static_cast<size_t>(context.thresholds["host-transfer.min_samples"]);
  bool judged = false;
  for (const Signal direction : {Signal::kPcieRx, Signal::kPcieTx}) {
    for (const SignalSeries& pcie : FindSignal(context.timeline, direction)) {
      const SignalSeries* sm = SameDevice(context.timeline, active, pcie);
      if (sm == nullptr || pcie.size() < least) continue;
      const double link = LinkOf(context.timeline, pcie.source);
      const double use = pcie.Quantile(0.9) / link;
      const Paired paired = Resample(pcie, *sm);
      if (paired.a.size() < least) continue;
      judged = true;
      const CoMovement move = CompareChanges(paired.a, paired.b);
      // Transfers that the GPU waits for: it works less when they run, and they come first.
      if (use < context.thresholds["host-transfer.link_share"] ||
          -move.pearson < context.thresholds["host-transfer.correlation"] || move.p >= 0.01 ||
          move.lag < 0) {
        continue;
      }
      Finding finding{.id = "host-transfer", .phase = Phase::kUnknown};
      finding.severity = Severity::kWarn;
      finding.confidence = 0.75;
      finding.saving_ms_per_step = kNaN;
      finding.title = {"host-transfer.title",
                       {{"share", Percent(use)}, {"gpu", std::to_string(pcie.device)}}};
      finding.evidence.push_back(
          {.text = {"host-transfer.evidence",
                    {{"pearson", Number(move.pearson)},
                     {"spearman", Number(move.spearman)},
                     {"lag_ms", Number(static_cast<double>(move.lag) *
                                       static_cast<double>(paired.period_ns) / 1e6)},
                     {"p", fmt::format("{:.3f}", move.p)},
                     {"n", std::to_string(move.n)}}},
           .value = move.pearson,
           .unit = "correlation"});
      finding.thresholds = {context.thresholds.Used("host-transfer.correlation"),
                            context.thresholds.Used("host-transfer.handbook_covariance_high")};
      finding.change = {"host-transfer.change", {}};
      finding.risk = {"host-transfer.risk", {}};
      finding.undo = {"host-transfer.undo", {}};
      findings.findings.push_back(std::move(finding));
    }
  }
  if (!judged) {
    findings.abstained.push_back(
        {"host-transfer", {"abstain.no_pcie_samples", {{"least", std::to_string(least)}}}});
  }
}

void ComputeBound(const RuleContext& context, Findings& findings) {
  std::vector<SignalSeries> sm = FindSignal(context.timeline, Signal::kSmActive);
  if (sm.empty()) sm = FindSignal(context.timeline, Signal::kGpuBusy);
  const std::vector<SignalSeries> dram = FindSignal(context.timeline, Signal::kDramActive);
  bool judged = false;
  Text why = {"abstain.no_gpu_samples", {}};
  for (const SignalSeries& busy : sm) {
    const SignalSeries* memory = SameDevice(context.timeline, dram, busy);
    if (memory == nullptr) continue;
    // The part of the recording in which the GPU worked at all.
    const Paired paired = Resample(busy, *memory);
    double work = 0;
    double traffic = 0;
    size_t n = 0;
    for (size_t i = 0; i < paired.a.size(); ++i) {
      if (paired.a[i] < kWorking) continue;
      work += paired.a[i];
      traffic += paired.b[i];
      ++n;
    }
    if (n < kMinWorkingSamples) {
      why = {"abstain.gpu_mostly_idle",
             {{"working", std::to_string(n)},
              {"of", std::to_string(paired.a.size())},
              {"gpu", std::to_string(busy.device)},
              {"least", std::to_string(kMinWorkingSamples)}}};
      continue;
    }
    judged = true;
    work /= static_cast<double>(n);
    traffic /= static_cast<double>(n);
    const bool compute = work >= context.thresholds["compute-bound.sm_active"] &&
                         traffic <= context.thresholds["compute-bound.dram_active"];
    const bool memory_bound = traffic >= context.thresholds["compute-bound.memory_bound"];
    if (!compute && !memory_bound) continue;
    Finding finding{.id = "compute-bound", .phase = Phase::kUnknown};
    finding.severity = Severity::kInfo;  // which roof binds is a fact, not a fault
    finding.confidence = busy.name.find("PROF") != std::string::npos ? 0.85 : 0.6;
    finding.saving_ms_per_step = kNaN;
    const std::vector<std::pair<std::string_view, std::string>> args = {
        {"gpu", std::to_string(busy.device)}, {"sm", Percent(work)}, {"dram", Percent(traffic)}};
    finding.title = {memory_bound ? "compute-bound.title.memory" : "compute-bound.title", args};
    finding.evidence.push_back(
        {.text = {"compute-bound.evidence",
                  {{"a", busy.name}, {"b", memory->name}, {"n", std::to_string(n)}}}});
    finding.thresholds = {context.thresholds.Used(memory_bound ? "compute-bound.memory_bound"
                                                               : "compute-bound.sm_active"),
                          context.thresholds.Used("compute-bound.handbook_covariance_low")};
    finding.change = {memory_bound ? "compute-bound.change.memory" : "compute-bound.change", {}};
    finding.risk = {"compute-bound.risk", {}};
    finding.undo = {"compute-bound.undo", {}};
    findings.findings.push_back(std::move(finding));
  }
  if (!judged) findings.abstained.push_back({"compute-bound", std::move(why)});
}

}  // namespace fathom::diagnose
