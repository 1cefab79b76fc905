#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/strings.h"
#include "diagnose/rules/families.h"
#include "diagnose/rules/handbook.h"
#include "diagnose/rules/rule.h"

namespace fathom::diagnose {
namespace {

constexpr Rule kRules[] = {
    {"kv-copy", KvCopy},
    {"rope-relaunch", RopeRelaunch},
    {"jit-recompile", JitRecompile},
    {"switch-stall", SwitchStall},
    {"graph-miss", GraphMiss},
    {"launch-gap", LaunchGap},
    {"sync-call", SyncCall},
    {"allocator", Allocator},
    {"head-imbalance", HeadImbalance},
    {"register-pressure", RegisterPressure},
    {"bank-conflict", BankConflict},
    {"uncoalesced", Uncoalesced},
    {"tensor-core", TensorCore},
    {"compute-bound", ComputeBound},
    {"host-transfer", HostTransfer},
    {"numa", Numa},
    {"moe-hotspot", MoeHotspot},
    {"routing-latency", RoutingLatency},
    {"tp-collective", TpCollective},
    {"rdma-jitter", RdmaJitter},
    {"overload", Overload},
    {"prefix-cache", PrefixCache},
    {"cache-version", CacheVersion},
    {"attention-roofline", AttentionRoofline},
    {"softmax-pass", SoftmaxPass},
};

}  // namespace

std::string_view SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarn:
      return "warn";
    case Severity::kSevere:
      return "severe";
  }
  return "unknown";
}

std::span<const Rule> Rules() { return kRules; }

Findings RunRules(const RuleContext& context) {
  Findings findings;
  for (const Rule& rule : kRules) {
    const size_t before = findings.findings.size() + findings.abstained.size();
    rule.run(context, findings);
    if (findings.findings.size() + findings.abstained.size() == before) {
      findings.clean.push_back(rule.id);
    }
  }
  HandbookFigures(context, findings);
  // What a limit of the handbook says stands beside what the rule itself decided: "clean" holds
  // only for rules of which neither is heard.
  std::erase_if(findings.clean, [&](std::string_view id) {
    const auto of_rule = [&](const auto& item) { return item.id == id; };
    return std::any_of(findings.findings.begin(), findings.findings.end(), of_rule) ||
           std::any_of(findings.abstained.begin(), findings.abstained.end(), of_rule);
  });
  // What saves most comes first, within its severity.
  std::stable_sort(findings.findings.begin(), findings.findings.end(),
                   [](const Finding& a, const Finding& b) {
                     if (a.severity != b.severity) return a.severity > b.severity;
                     const double x = std::isnan(a.saving_ms_per_step) ? 0 : a.saving_ms_per_step;
                     const double y = std::isnan(b.saving_ms_per_step) ? 0 : b.saving_ms_per_step;
                     return x > y;
                   });
  return findings;
}

double Median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double ConfidenceFor(const RuleContext& context, const Bucket& bucket, bool about_cpu_time) {
  double confidence = 0.95;
  if (bucket.counted.size() < kMinTailSteps) confidence -= 0.05;
  if (bucket.counted.size() < kMinSteps) confidence -= 0.25;
  if (!bucket.steps.empty()) {
    const Source& source = context.timeline.sources[context.steps.all[bucket.steps.front()].source];
    if (about_cpu_time && source.with_stack.value_or(false)) confidence -= 0.35;
    if (source.stats.dropped() > 0) confidence -= 0.1;
  }
  return std::max(confidence, 0.1);
}

std::string Number(double value) {
  if (std::isnan(value)) return "?";
  const double magnitude = std::fabs(value);
  if (magnitude >= 100 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  if (magnitude >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string Percent(double share) {
  return std::isnan(share) ? "?" : fmt::format("{:.1f}%", share * 100);
}

std::string Duration(double ns) {
  if (!std::isfinite(ns)) return "?";
  // Centuries are no length of anything: a broken input.
  if (std::fabs(ns) > 9e18) return fmt::format("{:.3g} s", ns / 1e9);
  return HumanNs(std::llround(ns));
}

}  // namespace fathom::diagnose
