// Rules about what is launched, how often, and in which step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "diagnose/rules/families.h"
#include "diagnose/understand/layers.h"
#include "diagnose/understand/shapes.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const Bucket* DecodeBucket(const RuleContext& context, std::string_view id, Findings& findings) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.empty() ||
      context.steps.all[bucket->counted.front()].num_work == 0) {
    findings.abstained.push_back({id, {"abstain.no_decode_gpu_steps", {}}});
    return nullptr;
  }
  return bucket;
}

// Layers of a step: by the period of its kernels, else one an attention operator.
uint32_t NumLayers(const RuleContext& context, const Step& step) {
  const LayerMap map = FindLayers(context.index, context.steps, step);
  std::set<uint32_t> operators;
  for (const uint32_t s : context.steps.WorkOf(step)) {
    if (context.index.kind(s) == KernelClass::kAttention && context.index.op(s) != kNone) {
      operators.insert(context.index.op(s));
    }
  }
  // A graph's kernels share one operator: only eager steps have one an attention.
  if (operators.size() >= 2) return static_cast<uint32_t>(operators.size());
  return map.num_layers;
}

// Rotations that a framework spells out: negate half, concatenate the halves, multiply by cosine
// and sine, add. The negation of half a head marks one.
struct Rotation {
  uint32_t kernels = 0;
  int64_t ns = 0;
  uint32_t example = kNone;
  uint32_t fused = 0;    // kernels that are a rotation by name
  uint32_t unfused = 0;  // spelled-out rotations
};

Rotation CountRotations(const RuleContext& context, const Step& step) {
  const Timeline& t = context.timeline;
  const std::span<const uint32_t> work = context.steps.WorkOf(step);
  Rotation r;
  std::vector<bool> taken(work.size(), false);
  const auto take = [&](size_t i) {
    if (taken[i]) return;
    taken[i] = true;
    ++r.kernels;
    r.ns += t.slices.dur_ns[work[i]];
    if (r.example == kNone) r.example = work[i];
  };
  for (size_t i = 0; i < work.size(); ++i) {
    if (context.index.kind(work[i]) == KernelClass::kRope) {
      take(i);
      ++r.fused;
      continue;
    }
    const std::string_view name = t.SliceName(work[i]);
    if (name.find("neg_kernel") == std::string_view::npos) continue;
    // Its neighbours: a multiplication before; a concatenation, a multiplication, an addition
    // after.
    bool cat = false;
    for (size_t k = i + 1; k < std::min(i + 4, work.size()); ++k) {
      const std::string_view next = t.SliceName(work[k]);
      const bool is_cat = next.find("CatArray") != std::string_view::npos;
      const bool mul_or_add = next.find("MulFunctor") != std::string_view::npos ||
                              next.find("BinaryFunctor") != std::string_view::npos ||
                              next.find("Functor_add") != std::string_view::npos;
      if (!is_cat && !mul_or_add) break;
      cat = cat || is_cat;
      if (cat) take(k);
    }
    if (!cat) continue;
    take(i);
    if (i > 0 && t.SliceName(work[i - 1]).find("BinaryFunctor") != std::string_view::npos)
      take(i - 1);
    ++r.unfused;
  }
  return r;
}

}  // namespace

void RopeRelaunch(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = DecodeBucket(context, "rope-relaunch", findings);
  if (bucket == nullptr) return;
  const uint32_t number = bucket->counted[bucket->counted.size() / 2];
  const Step& step = context.steps.all[number];
  const Rotation r = CountRotations(context, step);
  const uint32_t layers = NumLayers(context, step);
  if (layers == 0) {
    findings.abstained.push_back({"rope-relaunch", {"abstain.no_layers", {}}});
    return;
  }
  const double per_layer = static_cast<double>(r.kernels) / layers;
  const double share = static_cast<double>(r.ns) /
                       static_cast<double>(std::max<int64_t>(context.account(number).busy_ns, 1));
  const bool many = per_layer > context.thresholds["rope-relaunch.max_per_layer"];
  const bool slow = share > context.thresholds["rope-relaunch.max_share"];
  if (!many && !slow) return;
  Finding finding{.id = "rope-relaunch", .phase = Phase::kDecode};
  finding.severity = many && slow ? Severity::kWarn : Severity::kInfo;
  finding.confidence = ConfidenceFor(context, *bucket, false);
  finding.title = {"rope-relaunch.title",
                   {{"per_layer", Number(per_layer)}, {"share", Percent(share)}}};
  finding.evidence.push_back(
      {.text = {r.unfused > 0 ? "rope-relaunch.evidence.unfused" : "rope-relaunch.evidence.fused",
                {{"count", std::to_string(r.unfused > 0 ? r.unfused : r.fused)},
                 {"kernels", std::to_string(r.kernels)},
                 {"layers", std::to_string(layers)},
                 {"us", Number(static_cast<double>(r.ns) / 1e3)}}},
       .slice = r.example,
       .value = static_cast<double>(r.ns) / 1e6,
       .unit = "ms"});
  // One fused kernel a layer reads and writes what one of the spelled-out ones does.
  const double one = r.kernels > 0 ? static_cast<double>(r.ns) / r.kernels : 0;
  finding.saving_ms_per_step = std::max(0.0, static_cast<double>(r.ns) - one * layers) / 1e6;
  finding.thresholds = {
      context.thresholds.Used(many ? "rope-relaunch.max_per_layer" : "rope-relaunch.max_share")};
  finding.change = {"rope-relaunch.change", {}};
  finding.risk = {"rope-relaunch.risk", {}};
  finding.undo = {"rope-relaunch.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void RoutingLatency(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = DecodeBucket(context, "routing-latency", findings);
  if (bucket == nullptr) return;
  const uint32_t number = bucket->counted[bucket->counted.size() / 2];
  const Step& step = context.steps.all[number];
  uint32_t gates = 0;
  uint32_t experts = 0;
  uint32_t example = kNone;
  for (const uint32_t s : context.steps.WorkOf(step)) {
    experts += context.index.kind(s) == KernelClass::kExpert ? 1 : 0;
    if (context.index.kind(s) != KernelClass::kGate) continue;
    ++gates;
    if (example == kNone) example = s;
  }
  if (gates == 0 && experts == 0) return;  // no mixture of experts: nothing to route
  const uint32_t layers = NumLayers(context, step);
  const double share = static_cast<double>(context.account(number).busy(KernelClass::kGate)) /
                       static_cast<double>(std::max<int64_t>(context.account(number).busy_ns, 1));
  const double per_layer = layers > 0 ? static_cast<double>(gates) / layers : kNaN;
  const bool slow = share > context.thresholds["routing-latency.max_share"];
  const bool many = per_layer > context.thresholds["routing-latency.max_per_layer"];
  if (!slow && !many) return;
  Finding finding{.id = "routing-latency", .phase = Phase::kDecode};
  finding.severity = slow ? Severity::kWarn : Severity::kInfo;
  finding.confidence = ConfidenceFor(context, *bucket, false);
  const double ns = static_cast<double>(context.account(number).busy(KernelClass::kGate));
  finding.title = {"routing-latency.title", {{"us", Number(ns / 1e3)}, {"share", Percent(share)}}};
  finding.evidence.push_back(
      {.text = {"routing-latency.evidence",
                {{"kernels", std::to_string(gates)}, {"per_layer", Number(per_layer)}}},
       .slice = example,
       .value = ns / 1e6,
       .unit = "ms"});
  finding.saving_ms_per_step =
      many && layers > 0 ? ns / 1e6 * (1 - std::min(1.0, 1 / per_layer)) : ns / 1e6 / 2;
  finding.thresholds = {
      context.thresholds.Used(slow ? "routing-latency.max_share" : "routing-latency.max_per_layer"),
      context.thresholds.Used("routing-latency.handbook_ms")};
  finding.change = {"routing-latency.change", {}};
  finding.risk = {"routing-latency.risk", {}};
  finding.undo = {"routing-latency.undo", {}};
  findings.findings.push_back(std::move(finding));
}

void GraphMiss(const RuleContext& context, Findings& findings) {
  size_t log_lines = 0;
  size_t log_misses = 0;
  for (const LogLine& line : context.timeline.log_lines) {
    if (line.kind != LogKind::kDecode) continue;
    const auto graph = context.timeline.Value(line, LogField::kCudaGraph);
    if (!graph) continue;
    ++log_lines;
    log_misses += *graph == 0 ? 1 : 0;
  }
  bool any_bucket = false;
  size_t steps = 0;
  std::vector<uint32_t> missed;
  double excess_ns = 0;
  for (const Bucket& bucket : context.steps.buckets) {
    if (bucket.phase != Phase::kDecode || bucket.counted.size() < kMinSteps) continue;
    any_bucket = true;
    if (!bucket.graph_expected) continue;
    steps += bucket.counted.size();
    const double typical = MedianOver(
        bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
    for (const uint32_t s : bucket.counted) {
      if (context.steps.all[s].graph) continue;
      missed.push_back(s);
      excess_ns += std::max(0.0, static_cast<double>(context.account(s).wall_ns) - typical);
    }
  }
  if (log_lines == 0 && !any_bucket) {
    findings.abstained.push_back({"graph-miss", {"abstain.no_graph_evidence", {}}});
    return;
  }
  const double share =
      log_lines > 0 ? static_cast<double>(log_misses) / static_cast<double>(log_lines) : 0;
  const bool in_log = share > context.thresholds["graph-miss.max_share"];
  if (missed.empty() && !in_log) return;
  Finding finding{.id = "graph-miss", .phase = Phase::kDecode};
  finding.severity = share > 0.5 ? Severity::kSevere : Severity::kWarn;
  finding.confidence = 0.9;
  finding.saving_ms_per_step = kNaN;
  if (!missed.empty()) {
    finding.title = {"graph-miss.title.trace",
                     {{"missed", std::to_string(missed.size())}, {"steps", std::to_string(steps)}}};
    finding.evidence.push_back(
        {.text = {"graph-miss.evidence.trace",
                  {{"ms", Duration(excess_ns / static_cast<double>(missed.size()))}}},
         .slice = context.steps.all[missed.front()].marker,
         .value = excess_ns / 1e6 / static_cast<double>(missed.size()),
         .unit = "ms"});
    finding.saving_ms_per_step = excess_ns / 1e6 / static_cast<double>(std::max<size_t>(steps, 1));
  } else {
    finding.title = {"graph-miss.title.log",
                     {{"missed", std::to_string(log_misses)},
                      {"lines", std::to_string(log_lines)},
                      {"share", Percent(share)}}};
  }
  if (in_log) {
    finding.evidence.push_back(
        {.text = {"graph-miss.evidence.log",
                  {{"missed", std::to_string(log_misses)}, {"lines", std::to_string(log_lines)}}},
         .value = share,
         .unit = "share"});
  }
  finding.thresholds = {context.thresholds.Used("graph-miss.max_share"),
                        context.thresholds.Used("graph-miss.handbook_warmup_us")};
  finding.change = {"graph-miss.change", {}};
  finding.risk = {"graph-miss.risk", {}};
  finding.undo = {"graph-miss.undo", {}};
  findings.findings.push_back(std::move(finding));
}

namespace {

// What one slow step has more than a typical one of its bucket, by class and cause, largest first.
struct Excess {
  std::string what;
  double ns = 0;
};

std::vector<Excess> Compare(const RuleContext& context, const Bucket& bucket, uint32_t slow) {
  std::vector<Excess> parts;
  const StepAccount& account = context.account(slow);
  for (size_t i = 0; i < kNumKernelClasses; ++i) {
    const double typical = MedianOver(bucket, [&](uint32_t s) {
      return static_cast<double>(context.account(s).busy_by_class[i]);
    });
    parts.push_back({std::string(KernelClassName(static_cast<KernelClass>(i))),
                     static_cast<double>(account.busy_by_class[i]) - typical});
  }
  for (size_t i = 0; i < kNumGapCauses; ++i) {
    if (static_cast<GapCause>(i) == GapCause::kUnknown) continue;  // explains nothing
    const double typical = MedianOver(bucket, [&](uint32_t s) {
      return static_cast<double>(context.account(s).idle_by_cause[i]);
    });
    parts.push_back({fmt::format("idle:{}", GapCauseName(static_cast<GapCause>(i))),
                     static_cast<double>(account.idle_by_cause[i]) - typical});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Excess& a, const Excess& b) { return a.ns > b.ns; });
  return parts;
}

// A scheduler log says when a sequence's prefill ended and its decoding began, and in which graph.
void SwitchFromSchedule(const RuleContext& context, Findings& findings) {
  if (!context.thresholds.enabled("switch-stall.handbook_gap_us")) return;
  std::map<StringId, const ScheduleInterval*> last_prefill;
  size_t stalls = 0;
  size_t other_graph = 0;
  int64_t worst_ns = 0;
  double total_ns = 0;
  const double limit_ns = context.thresholds["switch-stall.handbook_gap_us"] * 1e3;
  std::vector<const ScheduleInterval*> order;
  for (const ScheduleInterval& i : context.timeline.schedule) order.push_back(&i);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->start_ns < b->start_ns; });
  for (const ScheduleInterval* i : order) {
    const std::string_view phase = context.timeline.Name(i->phase);
    if (phase == "prefill") {
      last_prefill[i->sequence] = i;
    } else if (phase == "decode") {
      const auto it = last_prefill.find(i->sequence);
      if (it == last_prefill.end()) continue;
      const int64_t gap = i->start_ns - it->second->end_ns;
      if (static_cast<double>(gap) >= limit_ns) {
        ++stalls;
        other_graph += i->graph_id != it->second->graph_id ? 1 : 0;
        worst_ns = std::max(worst_ns, gap);
        total_ns += static_cast<double>(gap);
      }
      last_prefill.erase(it);
    }
  }
  if (stalls == 0) return;
  Finding finding{.id = "switch-stall", .phase = Phase::kDecode};
  finding.severity = Severity::kWarn;
  finding.confidence = 0.85;
  finding.saving_ms_per_step = kNaN;
  finding.title = {"switch-stall.title.schedule",
                   {{"count", std::to_string(stalls)},
                    {"us", Number(total_ns / static_cast<double>(stalls) / 1e3)}}};
  finding.evidence.push_back({.text = {"switch-stall.evidence.schedule",
                                       {{"worst_us", Number(static_cast<double>(worst_ns) / 1e3)},
                                        {"other", std::to_string(other_graph)}}},
                              .value = static_cast<double>(worst_ns) / 1e6,
                              .unit = "ms"});
  finding.thresholds = {context.thresholds.Used("switch-stall.handbook_gap_us")};
  finding.change = {"switch-stall.change", {}};
  finding.risk = {"switch-stall.risk", {}};
  finding.undo = {"switch-stall.undo", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace

void SwitchStall(const RuleContext& context, Findings& findings) {
  const bool schedule = !context.timeline.schedule.empty();
  if (schedule) SwitchFromSchedule(context, findings);
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.size() < kMinTailSteps) {
    if (!schedule) {
      findings.abstained.push_back({"switch-stall", {"abstain.too_few_steps", {{"least", "20"}}}});
    }
    return;
  }
  const double typical = MedianOver(
      *bucket, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  std::vector<uint32_t> slow;
  double excess = 0;
  for (const uint32_t s : bucket->counted) {
    const auto wall = static_cast<double>(context.account(s).wall_ns);
    if (wall < context.thresholds["switch-stall.ratio"] * typical) continue;
    slow.push_back(s);
    excess += wall - typical;
  }
  if (slow.empty()) return;
  const uint32_t worst = *std::max_element(slow.begin(), slow.end(), [&](uint32_t a, uint32_t b) {
    return context.account(a).wall_ns < context.account(b).wall_ns;
  });
  Finding finding{.id = "switch-stall", .phase = Phase::kDecode};
  finding.severity = Severity::kWarn;
  finding.confidence = ConfidenceFor(context, *bucket, true);
  finding.title = {
      "switch-stall.title",
      {{"count", std::to_string(slow.size())},
       {"of", std::to_string(bucket->counted.size())},
       {"ratio", Number(static_cast<double>(context.account(worst).wall_ns) / typical)},
       {"ms", Duration(static_cast<double>(context.account(worst).wall_ns))},
       {"typical", Duration(typical)}}};
  // The parts of the excess, and what they leave unexplained.
  const double total = static_cast<double>(context.account(worst).wall_ns) - typical;
  double explained = 0;
  for (const Excess& part : Compare(context, *bucket, worst)) {
    if (part.ns < 0.05 * total || finding.evidence.size() == 4) break;
    explained += part.ns;
    finding.evidence.push_back({.text = {"switch-stall.evidence.part",
                                         {{"what", part.what},
                                          {"ms", Duration(part.ns)},
                                          {"share", Percent(part.ns / total)}}},
                                .slice = context.steps.all[worst].marker,
                                .value = part.ns / 1e6,
                                .unit = "ms"});
  }
  finding.evidence.push_back(
      {.text = {"switch-stall.evidence.rest", {{"ms", Duration(std::max(0.0, total - explained))}}},
       .value = std::max(0.0, total - explained) / 1e6,
       .unit = "ms"});
  finding.saving_ms_per_step = excess / 1e6 / static_cast<double>(bucket->counted.size());
  finding.thresholds = {context.thresholds.Used("switch-stall.ratio")};
  finding.change = {"switch-stall.change", {}};
  finding.risk = {"switch-stall.risk", {}};
  finding.undo = {"switch-stall.undo", {}};
  findings.findings.push_back(std::move(finding));
}

namespace {

// Blocks that an SM can hold at a time by threads, registers and shared memory; 0: not known.
double BlocksPerSm(const DeviceInfo& device, const KernelDetail& kernel) {
  const auto threads = static_cast<double>(kernel.block.count());
  if (threads == 0 || device.max_threads_per_sm <= 0 || kernel.registers_per_thread == 0 ||
      device.registers_per_sm <= 0) {
    return 0;
  }
  double blocks = std::floor(static_cast<double>(device.max_threads_per_sm) / threads);
  blocks = std::min(blocks, std::floor(static_cast<double>(device.registers_per_sm) /
                                       (threads * kernel.registers_per_thread)));
  if (kernel.shared_bytes > 0 && device.shared_bytes_per_sm > 0) {
    blocks = std::min(blocks, std::floor(static_cast<double>(device.shared_bytes_per_sm) /
                                         static_cast<double>(kernel.shared_bytes)));
  }
  return std::max(blocks, 1.0);
}

// The share of a kernel's time in which SMs have no block left: too few blocks for the SMs, or a
// last wave that fills few of them. Persistent kernels, a block an SM, lose nothing.
double IdleSmShare(const RuleContext& context, const DeviceInfo& device,
                   const KernelDetail& kernel) {
  const auto blocks = static_cast<double>(kernel.grid.count());
  const double sms = device.num_sms;
  if (blocks == 0) return 0;
  if (blocks < sms) return 1 - blocks / sms;
  const double at_a_time = sms * BlocksPerSm(device, kernel);
  if (at_a_time == 0) return 0;
  const double waves = blocks / at_a_time;
  if (waves <= 1 || waves >= context.thresholds["head-imbalance.max_waves"]) return 0;
  const double tail = (std::ceil(waves) - waves) / std::ceil(waves);
  return tail > context.thresholds["head-imbalance.tail_share"] ? tail : 0;
}

}  // namespace

void HeadImbalance(const RuleContext& context, Findings& findings) {
  const bool profiled = UnevenProfiledKernels(context, findings);
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (profiled && (bucket == nullptr || bucket->counted.empty())) return;
  bucket = DecodeBucket(context, "head-imbalance", findings);
  if (bucket == nullptr) return;
  const uint32_t number = bucket->counted[bucket->counted.size() / 2];
  const Step& step = context.steps.all[number];
  const GpuKey gpu = context.index.gpus()[step.gpu];
  DeviceInfo device;
  for (const DeviceInfo& d : context.timeline.sources[gpu.source].devices) {
    if (d.id == gpu.device) device = d;
  }
  if (device.num_sms <= 0) {
    findings.abstained.push_back({"head-imbalance", {"abstain.unknown_gpu", {}}});
    return;
  }
  int64_t ns = 0;
  uint32_t example = kNone;
  uint32_t count = 0;
  double saved = 0;
  bool any_attention = false;
  for (const uint32_t s : context.steps.WorkOf(step)) {
    if (context.index.kind(s) != KernelClass::kAttention ||
        context.timeline.slices.category[s] != Category::kKernel) {
      continue;
    }
    any_attention = true;
    const KernelDetail& kernel = context.timeline.kernels[context.timeline.slices.detail[s]];
    const int64_t dur = context.timeline.slices.dur_ns[s];
    // Combining kernels and the like are over before a split would pay.
    if (static_cast<double>(dur) < context.thresholds["head-imbalance.min_us"] * 1e3) continue;
    const double idle = IdleSmShare(context, device, kernel);
    if (idle == 0) continue;
    ns += dur;
    saved += static_cast<double>(dur) * idle;
    ++count;
    if (example == kNone) example = s;
  }
  if (!any_attention) {
    findings.abstained.push_back({"head-imbalance", {"abstain.no_attention_kernels", {}}});
    return;
  }
  if (count == 0) return;
  const double share = static_cast<double>(ns) /
                       static_cast<double>(std::max<int64_t>(context.account(number).busy_ns, 1));
  if (share < context.thresholds["head-imbalance.min_share"]) return;
  const KernelDetail& kernel = context.timeline.kernels[context.timeline.slices.detail[example]];
  const bool few = kernel.grid.count() < static_cast<uint64_t>(device.num_sms);
  Finding finding{.id = "head-imbalance", .phase = Phase::kDecode};
  finding.severity = Severity::kWarn;
  finding.confidence = ConfidenceFor(context, *bucket, false) - 0.1;
  finding.title = {few ? "head-imbalance.title" : "head-imbalance.title.tail",
                   {{"blocks", std::to_string(kernel.grid.count())},
                    {"sms", std::to_string(device.num_sms)},
                    {"idle", Percent(IdleSmShare(context, device, kernel))},
                    {"share", Percent(share)}}};
  finding.evidence.push_back(
      {.text = {"head-imbalance.evidence",
                {{"kernel", std::string(context.timeline.SliceName(example))},
                 {"count", std::to_string(count)},
                 {"us", Number(static_cast<double>(ns) / count / 1e3)},
                 {"threads", std::to_string(kernel.block.count())}}},
       .slice = example,
       .value = static_cast<double>(ns) / 1e6,
       .unit = "ms"});
  finding.saving_ms_per_step = saved / 1e6;
  finding.thresholds = {
      context.thresholds.Used(few ? "head-imbalance.min_share" : "head-imbalance.tail_share"),
      context.thresholds.Used("head-imbalance.handbook_occupancy")};
  finding.change = {few ? "head-imbalance.change" : "head-imbalance.change.tail", {}};
  finding.risk = {"head-imbalance.risk", {}};
  finding.undo = {"head-imbalance.undo", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace fathom::diagnose
