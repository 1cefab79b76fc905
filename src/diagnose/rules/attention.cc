#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "diagnose/rules/families.h"
#include "diagnose/understand/attention_calls.h"
#include "diagnose/understand/shapes.h"

namespace fathom::diagnose {
namespace {

// What a fused attention kernel reaches of the compute roof at prefill sizes, for savings: the
// middle of what published kernels reach.
constexpr double kFusedShareOfRoof = 0.6;

// The last two extents of a scores tensor [batch, heads, queries, keys], from the softmax operator.
struct Scores {
  Shape shape;
  uint32_t softmax = kNone;  // the kernel
};

Scores FindScores(const RuleContext& context, const Step& step) {
  for (const uint32_t s : context.steps.WorkOf(step)) {
    if (context.index.kind(s) != KernelClass::kSoftmax) continue;
    const std::vector<Argument> arguments = ArgumentsOf(context.timeline, context.index.op(s));
    if (arguments.empty()) continue;
    const Shape& shape = arguments[0].shape();
    // A sampler's softmax is [batch, vocabulary]; a router's [tokens, experts].
    if (shape.size() == 4 && shape[2] > 1 && shape[3] > 1) return {shape, s};
  }
  return {};
}

int DeviceArchitecture(const RuleContext& context, const Step& step) {
  if (step.num_work == 0) return 0;
  const GpuKey gpu = context.index.gpus()[step.gpu];
  for (const DeviceInfo& device : context.timeline.sources[gpu.source].devices) {
    if (device.id == gpu.device && device.is_cuda()) {
      return device.compute_major * 10 + device.compute_minor;
    }
  }
  return 0;
}

}  // namespace

void SoftmaxPass(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = context.steps.Main(Phase::kPrefill);
  if (bucket == nullptr) bucket = context.steps.Main(Phase::kMixed);
  if (bucket == nullptr || bucket->counted.empty() ||
      context.steps.all[bucket->counted.front()].num_work == 0) {
    findings.abstained.push_back({"softmax-pass", {"abstain.no_prefill_gpu_steps", {}}});
    return;
  }
  const uint32_t number = bucket->counted.front();
  const Step& step = context.steps.all[number];
  const Scores scores = FindScores(context, step);
  if (scores.softmax == kNone) {
    // No softmax kernel at all is a clean result only if shapes would have shown one.
    const Source& source = context.timeline.sources[step.source];
    if (context.account(number).busy(KernelClass::kSoftmax) > 0 &&
        !source.record_shapes.value_or(false)) {
      findings.abstained.push_back({"softmax-pass", {"abstain.no_shapes", {}}});
    }
    return;
  }
  // Everything that touches a tensor of the scores' shape: scale, mask, casts, softmax, and the two
  // matrix products around it.
  int64_t passes_ns = 0;
  int64_t products_ns = 0;
  uint32_t passes = 0;
  uint32_t layers = 0;
  int64_t head_dim = 0;  // of the queries, as Q K^T's shapes tell
  const int64_t elements = NumElements(scores.shape);
  for (const uint32_t s : context.steps.WorkOf(step)) {
    const uint32_t op = context.index.op(s);
    bool touches = false;
    const bool product = context.index.kind(s) == KernelClass::kGemm;
    const std::vector<Argument> arguments = ArgumentsOf(context.timeline, op);
    for (const Argument& argument : arguments) {
      for (const Shape& shape : argument.shapes) {
        touches = touches || NumElements(shape) == elements;
      }
    }
    // Q K^T makes the scores from inputs that are smaller: its output has their last extents.
    if (product && !touches) {
      touches = arguments.size() >= 2 && arguments[0].shape().size() == 3 &&
                arguments[1].shape().size() == 3 && arguments[1].shape()[2] == scores.shape[3] &&
                arguments[0].shape()[1] == scores.shape[2];
      if (touches) head_dim = arguments[0].shape()[2];
    }
    if (!touches) continue;
    if (product) {
      products_ns += context.timeline.slices.dur_ns[s];
    } else {
      passes_ns += context.timeline.slices.dur_ns[s];
      ++passes;
    }
    layers += ClassifyKernelName(context.timeline.SliceName(s)) == KernelClass::kSoftmax ? 1 : 0;
  }
  const double share = static_cast<double>(passes_ns) /
                       static_cast<double>(std::max<int64_t>(context.account(number).busy_ns, 1));
  const bool severe = share >= context.thresholds["softmax-pass.severe_share"];
  if (!severe && share < context.thresholds["softmax-pass.warn_share"]) return;
  Finding finding{.id = "softmax-pass", .phase = step.phase};
  finding.severity = severe ? Severity::kSevere : Severity::kWarn;
  finding.confidence = ConfidenceFor(context, *bucket, false);
  finding.title = {"softmax-pass.title",
                   {{"ms", Duration(static_cast<double>(passes_ns))}, {"share", Percent(share)}}};
  std::string shape = "[";
  for (size_t i = 0; i < scores.shape.size(); ++i) {
    shape += (i ? ", " : "") + std::to_string(scores.shape[i]);
  }
  shape += "]";
  finding.evidence.push_back({.text = {"softmax-pass.evidence.scores",
                                       {{"shape", shape},
                                        {"mb", Number(static_cast<double>(elements) * 2 / 1e6)},
                                        {"kernels", std::to_string(passes)},
                                        {"layers", std::to_string(std::max<uint32_t>(layers, 1))}}},
                              .slice = scores.softmax,
                              .value = static_cast<double>(passes_ns) / 1e6,
                              .unit = "ms"});
  // A fused kernel does the two products and nothing else, at a known share of the roof; half of
  // the scores of a prompt are masked.
  double fused_ns = static_cast<double>(products_ns);
  const auto hardware = HardwareOf(context.timeline, context.index, step);
  if (hardware && head_dim > 0) {
    const double flops = 4.0 * static_cast<double>(elements) / 2 * static_cast<double>(head_dim) *
                         std::max<uint32_t>(layers, 1);
    fused_ns = flops / (hardware->bf16_flops_per_s * kFusedShareOfRoof) * 1e9;
    finding.evidence.push_back(
        {.text = {"softmax-pass.evidence.fused",
                  {{"now", Duration(static_cast<double>(passes_ns + products_ns))},
                   {"fused", Duration(fused_ns)},
                   {"gpu", std::string(hardware->name)}}}});
  }
  finding.saving_ms_per_step =
      std::max(0.0, static_cast<double>(passes_ns + products_ns) - fused_ns) / 1e6;
  finding.thresholds.push_back(
      context.thresholds.Used(severe ? "softmax-pass.severe_share" : "softmax-pass.warn_share"));
  finding.change = {"softmax-pass.change", {}};
  finding.risk = {"softmax-pass.risk", {}};
  finding.undo = {"softmax-pass.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void AttentionRoofline(const RuleContext& context, Findings& findings) {
  bool any_phase = false;
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    const Bucket* bucket = context.steps.Main(phase);
    if (bucket == nullptr || bucket->counted.empty()) continue;
    const uint32_t number = bucket->counted[bucket->counted.size() / 2];
    const Step& step = context.steps.all[number];
    if (step.num_work == 0) continue;
    any_phase = true;
    const StepAccount& account = context.account(number);
    const double share = static_cast<double>(account.busy(KernelClass::kAttention)) /
                         static_cast<double>(std::max<int64_t>(account.busy_ns, 1));
    if (share == 0) continue;

    // A kernel written for an older GPU than the one it runs on leaves the newer units idle.
    const int device = DeviceArchitecture(context, step);
    uint32_t old_kernel = kNone;
    int64_t old_ns = 0;
    for (const uint32_t s : context.steps.WorkOf(step)) {
      if (context.index.kind(s) != KernelClass::kAttention) continue;
      const int made_for = ArchitectureInName(context.timeline.SliceName(s));
      if (made_for == 0 || device == 0 || made_for / 10 >= device / 10) continue;
      old_ns += context.timeline.slices.dur_ns[s];
      if (old_kernel == kNone) old_kernel = s;
    }

    const std::vector<AttentionCall> calls = FindAttentionCalls(context.index, context.steps, step);
    const auto hardware = HardwareOf(context.timeline, context.index, step);
    double worst = std::numeric_limits<double>::quiet_NaN();
    cost::Cost total;
    int64_t measured_ns = 0;
    const AttentionCall* example = nullptr;
    if (hardware) {
      for (const AttentionCall& call : calls) {
        total += call.cost;
        measured_ns += call.busy_ns;
        if (example == nullptr || call.busy_ns > example->busy_ns) example = &call;
      }
      if (measured_ns > 0) {
        worst =
            cost::RooflineSeconds(total, hardware->memory_bytes_per_s, hardware->bf16_flops_per_s) /
            (static_cast<double>(measured_ns) / 1e9);
      }
    }
    const bool matters = share >= context.thresholds["attention-roofline.min_busy_share"];
    const bool slow = matters && worst < context.thresholds["attention-roofline.warn_share"];
    if (old_kernel == kNone && !slow) {
      if (matters && std::isnan(worst)) {
        findings.abstained.push_back(
            {"attention-roofline",
             {hardware ? "abstain.no_attention_shapes" : "abstain.unknown_gpu", {}}});
      }
      continue;
    }
    Finding finding{.id = "attention-roofline", .phase = phase};
    finding.confidence = ConfidenceFor(context, *bucket, false);
    finding.severity = !matters ? Severity::kInfo
                       : slow && worst < context.thresholds["attention-roofline.severe_share"]
                           ? Severity::kSevere
                           : Severity::kWarn;
    finding.saving_ms_per_step = std::numeric_limits<double>::quiet_NaN();
    if (slow) {
      finding.title = {"attention-roofline.title",
                       {{"roof", Percent(worst)}, {"share", Percent(share)}}};
      finding.evidence.push_back(
          {.text = {example->MemoryBound(*hardware) ? "attention-roofline.evidence.memory"
                                                    : "attention-roofline.evidence.compute",
                    {{"queries", Number(example->queries)},
                     {"keys", Number(example->keys)},
                     {"heads", Number(example->heads)},
                     {"kv_heads", Number(example->kv_heads)},
                     {"us", Number(static_cast<double>(example->busy_ns) / 1e3)},
                     {"rate",
                      Number(example->MemoryBound(*hardware)
                                 ? example->cost.bytes / static_cast<double>(example->busy_ns)
                                 : example->cost.flops / static_cast<double>(example->busy_ns) /
                                       1e3)},
                     {"kernel", std::string(context.timeline.SliceName(example->kernel))}}},
           .slice = example->kernel,
           .value = worst,
           .unit = "share"});
      // To what the warning asks for, not to the roof itself.
      const double floor = worst * static_cast<double>(measured_ns) /
                           context.thresholds["attention-roofline.warn_share"];
      finding.saving_ms_per_step = std::max(0.0, static_cast<double>(measured_ns) - floor) / 1e6;
      finding.thresholds.push_back(context.thresholds.Used(finding.severity == Severity::kSevere
                                                               ? "attention-roofline.severe_share"
                                                               : "attention-roofline.warn_share"));
    } else {
      finding.title = {"attention-roofline.title.old", {{"share", Percent(share)}}};
    }
    if (old_kernel != kNone) {
      finding.evidence.push_back(
          {.text = {"attention-roofline.evidence.old",
                    {{"kernel", std::string(context.timeline.SliceName(old_kernel))},
                     {"made_for",
                      std::to_string(ArchitectureInName(context.timeline.SliceName(old_kernel)))},
                     {"device", std::to_string(device)},
                     {"us", Number(static_cast<double>(old_ns) / 1e3)}}},
           .slice = old_kernel,
           .value = static_cast<double>(old_ns) / 1e6,
           .unit = "ms"});
    }
    finding.thresholds.push_back(context.thresholds.Used("attention-roofline.min_busy_share"));
    finding.change = {
        old_kernel != kNone ? "attention-roofline.change.old" : "attention-roofline.change", {}};
    finding.risk = {"attention-roofline.risk", {}};
    finding.undo = {"attention-roofline.undo", {}};
    findings.findings.push_back(std::move(finding));
  }
  if (!any_phase) {
    findings.abstained.push_back({"attention-roofline", {"abstain.no_gpu_steps", {}}});
  }
}

}  // namespace fathom::diagnose
