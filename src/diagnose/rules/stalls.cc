#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/strings.h"
#include "diagnose/rules/families.h"
#include "diagnose/understand/shapes.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

// Between two kernels of a full queue the GPU's front end takes about this long: no launch saves
// it.
constexpr double kQueuedGapNs = 1000;

// The decode bucket if its steps carry GPU work and what repeats in it can be told from an
// accident, else nullptr and an abstention.
const Bucket* DecodeBucket(const RuleContext& context, std::string_view id, Findings& findings) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.empty() ||
      context.steps.all[bucket->counted.front()].num_work == 0) {
    findings.abstained.push_back({id, {"abstain.no_decode_gpu_steps", {}}});
    return nullptr;
  }
  if (bucket->counted.size() < kMinSteps) {
    findings.abstained.push_back(
        {id, {"abstain.too_few_steps", {{"least", std::to_string(kMinSteps)}}}});
    return nullptr;
  }
  return bucket;
}

double IdleShare(const RuleContext& context, const Bucket& bucket,
                 std::initializer_list<GapCause> causes) {
  return MedianOver(bucket, [&](uint32_t step) {
    const StepAccount& account = context.account(step);
    int64_t idle = 0;
    for (const GapCause cause : causes) idle += account.idle(cause);
    return static_cast<double>(idle) / static_cast<double>(std::max<int64_t>(account.wall_ns, 1));
  });
}

double IdleNs(const RuleContext& context, const Bucket& bucket,
              std::initializer_list<GapCause> causes) {
  return MedianOver(bucket, [&](uint32_t step) {
    int64_t idle = 0;
    for (const GapCause cause : causes) idle += context.account(step).idle(cause);
    return static_cast<double>(idle);
  });
}

// Severity by a pair of thresholds; empty below both.
std::optional<Severity> Judge(const RuleContext& context, std::string_view id, double share,
                              Finding& finding) {
  const std::string warn = std::string(id) + ".warn_share";
  const std::string severe = std::string(id) + ".severe_share";
  if (share >= context.thresholds[severe]) {
    finding.thresholds.push_back(context.thresholds.Used(severe));
    return Severity::kSevere;
  }
  if (share >= context.thresholds[warn]) {
    finding.thresholds.push_back(context.thresholds.Used(warn));
    return Severity::kWarn;
  }
  return std::nullopt;
}

// The gaps of one cause in a bucket's counted steps, by the name of what caused them.
struct Culprit {
  uint32_t example = kNone;
  uint32_t count = 0;
  int64_t idle_ns = 0;
  std::set<uint32_t> steps;
  std::set<StringId> shapes;
};

std::vector<Culprit> Culprits(const RuleContext& context, const Bucket& bucket, GapCause cause) {
  std::map<StringId, Culprit> by_name;
  for (const uint32_t step : bucket.counted) {
    for (const Gap& gap : context.account(step).gaps) {
      if (gap.cause != cause || gap.culprit == kNone) continue;
      Culprit& culprit = by_name[context.timeline.slices.name[gap.culprit]];
      if (culprit.example == kNone) culprit.example = gap.culprit;
      ++culprit.count;
      culprit.idle_ns += gap.length_ns();
      culprit.steps.insert(step);
      const uint32_t detail = context.timeline.slices.detail[gap.culprit];
      if (context.timeline.slices.category[gap.culprit] == Category::kCpuOp && detail != kNone) {
        culprit.shapes.insert(context.timeline.ops[detail].input_dims);
      }
    }
  }
  std::vector<Culprit> list;
  for (auto& [name, culprit] : by_name) list.push_back(std::move(culprit));
  std::sort(list.begin(), list.end(),
            [](const Culprit& a, const Culprit& b) { return a.idle_ns > b.idle_ns; });
  return list;
}

// "[1, 8, 4099, 128] -> [1, 8, 4100, 128]": the first argument that differs between two shapes.
std::string ShapeChange(const Timeline& timeline, const std::set<StringId>& shapes) {
  if (shapes.size() < 2) return "";
  const auto a = ParseArguments(timeline.Name(*shapes.begin()), "");
  const auto b = ParseArguments(timeline.Name(*std::next(shapes.begin())), "");
  const auto text = [](const Shape& shape) {
    std::string s = "[";
    for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
    return s + "]";
  };
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].shape() != b[i].shape()) return text(a[i].shape()) + " -> " + text(b[i].shape());
  }
  return "";
}

}  // namespace

void JitRecompile(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = DecodeBucket(context, "jit-recompile", findings);
  if (bucket == nullptr) return;
  const auto causes = {GapCause::kPlanBuilding, GapCause::kModuleLoad};
  const double share = IdleShare(context, *bucket, causes);
  Finding finding{.id = "jit-recompile", .phase = Phase::kDecode};
  const auto severity = Judge(context, "jit-recompile", share, finding);
  if (!severity) return;
  const double idle = IdleNs(context, *bucket, causes);
  // What recurs: one plan in one step may be an accident, the same operator in most steps is not.
  size_t recurring = 0;
  for (const GapCause cause : causes) {
    for (const Culprit& culprit : Culprits(context, *bucket, cause)) {
      if (culprit.steps.size() * 2 < bucket->counted.size()) continue;
      ++recurring;
      const std::string change = ShapeChange(context.timeline, culprit.shapes);
      finding.evidence.push_back(
          {.text = {change.empty() ? "jit-recompile.evidence.op" : "jit-recompile.evidence.shape",
                    {{"op", std::string(context.timeline.SliceName(culprit.example))},
                     {"steps", std::to_string(culprit.steps.size())},
                     {"of", std::to_string(bucket->counted.size())},
                     {"ms", Duration(static_cast<double>(culprit.idle_ns) /
                                     static_cast<double>(culprit.steps.size()))},
                     {"change", change},
                     {"shapes", std::to_string(culprit.shapes.size())}}},
           .slice = culprit.example,
           .value = static_cast<double>(culprit.idle_ns) / 1e6 /
                    static_cast<double>(culprit.steps.size()),
           .unit = "ms"});
    }
  }
  if (recurring == 0) return;
  finding.severity = *severity;
  finding.confidence = ConfidenceFor(context, *bucket, false);
  finding.title = {"jit-recompile.title", {{"ms", Duration(idle)}, {"share", Percent(share)}}};
  finding.saving_ms_per_step = idle / 1e6;
  finding.thresholds.push_back(context.thresholds.Used("jit-recompile.min_op_ms"));
  finding.change = {"jit-recompile.change", {}};
  finding.risk = {"jit-recompile.risk", {}};
  finding.undo = {"jit-recompile.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void LaunchGap(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = DecodeBucket(context, "launch-gap", findings);
  if (bucket == nullptr) return;
  const double unknown = IdleShare(context, *bucket, {GapCause::kUnknown});
  if (unknown > 0.3) {
    findings.abstained.push_back(
        {"launch-gap", {"abstain.no_launches", {{"share", Percent(unknown)}}}});
    return;
  }
  const double share = IdleShare(context, *bucket, {GapCause::kLaunchBound});
  Finding finding{.id = "launch-gap", .phase = Phase::kDecode};
  const auto severity = Judge(context, "launch-gap", share, finding);
  if (!severity) return;
  const double idle = IdleNs(context, *bucket, {GapCause::kLaunchBound});
  const double busy = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).busy_ns); });
  const double wall = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  const double launches =
      MedianOver(*bucket, [&](uint32_t s) { return double{1} * context.account(s).num_launches; });
  const double kernels =
      MedianOver(*bucket, [&](uint32_t s) { return double{1} * context.account(s).num_kernels; });
  const bool graph = bucket->graph_expected;
  const Source& source = context.timeline.sources[context.steps.all[bucket->counted[0]].source];
  finding.severity = *severity;
  finding.confidence = ConfidenceFor(context, *bucket, true);
  finding.title = {
      "launch-gap.title",
      {{"busy", Duration(busy)}, {"wall", Duration(wall)}, {"share", Percent(busy / wall)}}};
  finding.evidence.push_back({.text = {"launch-gap.evidence.idle",
                                       {{"ms", Duration(idle)},
                                        {"launches", Number(launches)},
                                        {"kernels", Number(kernels)},
                                        {"each_us", Number(idle / std::max(launches, 1.0) / 1e3)}}},
                              .value = idle / 1e6,
                              .unit = "ms"});
  if (source.with_stack.value_or(false)) {
    finding.evidence.push_back({.text = {"launch-gap.evidence.stacks", {}}});
  }
  finding.saving_ms_per_step = std::max(0.0, idle - kernels * kQueuedGapNs) / 1e6;
  finding.change = {graph ? "launch-gap.change.graph" : "launch-gap.change.eager", {}};
  finding.risk = {"launch-gap.risk", {}};
  finding.undo = {"launch-gap.undo", {}};
  findings.findings.push_back(std::move(finding));
}

namespace {

// sync-call and allocator differ in what they look for, not in how.
void CallRule(const RuleContext& context, Findings& findings, std::string_view id, GapCause cause,
              std::string_view prefix_title, std::string_view evidence, std::string_view change,
              std::string_view risk, std::string_view undo) {
  const Bucket* bucket = DecodeBucket(context, id, findings);
  if (bucket == nullptr) return;
  const double share = IdleShare(context, *bucket, {cause});
  Finding finding{.id = id, .phase = Phase::kDecode};
  const auto severity = Judge(context, id, share, finding);
  if (!severity) return;
  const double idle = IdleNs(context, *bucket, {cause});
  for (const Culprit& culprit : Culprits(context, *bucket, cause)) {
    if (finding.evidence.size() == 4) break;
    const auto steps = static_cast<double>(bucket->counted.size());
    finding.evidence.push_back(
        {.text = {evidence,
                  {{"call", std::string(context.timeline.SliceName(culprit.example))},
                   {"count", Number(culprit.count / steps)},
                   {"ms", Duration(static_cast<double>(culprit.idle_ns) / steps)},
                   {"stack", context.index.PythonStack(culprit.example, 3)}}},
         .slice = culprit.example,
         .value = static_cast<double>(culprit.idle_ns) / 1e6 / steps,
         .unit = "ms"});
  }
  finding.severity = *severity;
  finding.confidence = ConfidenceFor(context, *bucket, true);
  finding.title = {prefix_title, {{"ms", Duration(idle)}, {"share", Percent(share)}}};
  finding.saving_ms_per_step = idle / 1e6;
  finding.change = {change, {}};
  finding.risk = {risk, {}};
  finding.undo = {undo, {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace

void SyncCall(const RuleContext& context, Findings& findings) {
  CallRule(context, findings, "sync-call", GapCause::kSyncCall, "sync-call.title",
           "sync-call.evidence", "sync-call.change", "sync-call.risk", "sync-call.undo");
}

namespace {

// What the caching allocator holds on the steps' GPU must not change once it is warm: each change
// is a cudaMalloc or cudaFree, whether or not the GPU had to wait for it.
void ReservedSwing(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.size() < kMinSteps) return;
  const Step& first = context.steps.all[bucket->counted.front()];
  if (first.num_work == 0) return;
  const int64_t from_ns = first.start_ns;
  const int64_t until_ns = context.steps.all[bucket->counted.back()].end_ns;
  const GpuKey gpu = context.index.gpus()[first.gpu];
  for (const SignalSeries& reserved : FindSignal(context.timeline, Signal::kMemoryReserved)) {
    if (reserved.source != gpu.source || reserved.device != gpu.device) continue;
    double least = std::numeric_limits<double>::infinity();
    double most = 0;
    double before = std::numeric_limits<double>::quiet_NaN();
    size_t changes = 0;
    for (size_t i = 0; i < reserved.size(); ++i) {
      if (reserved.t_ns[i] < from_ns || reserved.t_ns[i] > until_ns) continue;
      least = std::min(least, reserved.value[i]);
      most = std::max(most, reserved.value[i]);
      changes += !std::isnan(before) && reserved.value[i] != before ? 1 : 0;
      before = reserved.value[i];
    }
    if (most <= 0) continue;
    const double swing = (most - least) / most;
    const bool severe = swing >= context.thresholds["allocator.swing_severe"];
    if (!severe && swing < context.thresholds["allocator.swing_warn"]) continue;
    Finding finding{.id = "allocator", .phase = Phase::kDecode};
    finding.severity = severe ? Severity::kSevere : Severity::kWarn;
    finding.confidence = ConfidenceFor(context, *bucket, false);
    finding.saving_ms_per_step = std::numeric_limits<double>::quiet_NaN();
    finding.title = {"allocator.title.swing", {{"share", Percent(swing)}}};
    finding.evidence.push_back({.text = {"allocator.evidence.swing",
                                         {{"most", HumanBytes(static_cast<uint64_t>(most))},
                                          {"least", HumanBytes(static_cast<uint64_t>(least))},
                                          {"changes", std::to_string(changes)},
                                          {"steps", std::to_string(bucket->counted.size())}}},
                                .value = swing,
                                .unit = "share"});
    finding.thresholds = {
        context.thresholds.Used(severe ? "allocator.swing_severe" : "allocator.swing_warn"),
        context.thresholds.Used("allocator.handbook_swing")};
    finding.change = {"allocator.change", {}};
    finding.risk = {"allocator.risk", {}};
    finding.undo = {"allocator.undo", {}};
    findings.findings.push_back(std::move(finding));
  }
}

}  // namespace

void Allocator(const RuleContext& context, Findings& findings) {
  ReservedSwing(context, findings);
  CallRule(context, findings, "allocator", GapCause::kAllocator, "allocator.title",
           "allocator.evidence", "allocator.change", "allocator.risk", "allocator.undo");
}

}  // namespace fathom::diagnose
