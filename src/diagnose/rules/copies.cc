#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/strings.h"
#include "diagnose/rules/families.h"
#include "diagnose/understand/shapes.h"

namespace fathom::diagnose {
namespace {

// A token must still be appended where a concatenation did it: a kernel that writes next to nothing
// takes about this long.
constexpr double kAppendNs = 2000;

enum class CopySort : uint8_t { kExpand, kConcatenate, kMemcpy, kOther };

// Equal copies of one step: same operator, same shapes.
struct CopyGroup {
  CopySort sort = CopySort::kOther;
  bool is_kv = false;
  bool by_shape = false;  // recognised by its shapes or stack, not by a name alone
  uint32_t example = kNone;
  uint32_t count = 0;
  int64_t total_ns = 0;
  double bytes_each = 0;  // written; 0 when unknown
  std::string shape;
};

class KvCopies {
 public:
  explicit KvCopies(const RuleContext& context) : context_(context), timeline_(context.timeline) {}

  // The copies of one step, by operator and shape.
  std::vector<CopyGroup> Groups(const Step& step) const {
    const std::set<int64_t> key_lengths = KeyLengths(step);
    std::map<std::tuple<StringId, StringId, StringId>, CopyGroup> groups;
    for (const uint32_t s : context_.steps.WorkOf(step)) {
      const KernelClass kind = context_.index.kind(s);
      if (kind != KernelClass::kCopy && kind != KernelClass::kCat &&
          kind != KernelClass::kMemcpyDevice) {
        continue;
      }
      const uint32_t op = context_.index.op(s);
      const StringId dims = op == kNone || timeline_.slices.detail[op] == kNone
                                ? 0
                                : timeline_.ops[timeline_.slices.detail[op]].input_dims;
      const StringId op_name = op == kNone ? 0 : timeline_.slices.name[op];
      CopyGroup& group = groups[{timeline_.slices.name[s], op_name, dims}];
      if (group.count == 0) Describe(s, op, kind, key_lengths, group);
      ++group.count;
      group.total_ns += timeline_.slices.dur_ns[s];
    }
    std::vector<CopyGroup> list;
    for (auto& [key, group] : groups) list.push_back(std::move(group));
    std::sort(list.begin(), list.end(),
              [](const CopyGroup& a, const CopyGroup& b) { return a.total_ns > b.total_ns; });
    return list;
  }

 private:
  // How many keys this step's attention reads, from the shapes of attention and softmax operators.
  std::set<int64_t> KeyLengths(const Step& step) const {
    std::set<int64_t> lengths;
    std::set<uint32_t> seen;
    for (const uint32_t s : context_.steps.WorkOf(step)) {
      for (uint32_t op = context_.index.op(s); op != kNone; op = context_.index.parent(op)) {
        if (timeline_.slices.category[op] != Category::kCpuOp || !seen.insert(op).second) break;
        const KernelClass kind = ClassifyOperator(timeline_.SliceName(op));
        if (kind != KernelClass::kAttention && kind != KernelClass::kSoftmax) continue;
        const std::vector<Argument> arguments = ArgumentsOf(timeline_, op);
        if (kind == KernelClass::kSoftmax && !arguments.empty() &&
            arguments[0].shape().size() == 4) {
          lengths.insert(arguments[0].shape()[3]);
        }
        if (kind == KernelClass::kAttention && arguments.size() > 1 &&
            arguments[1].shape().size() == 4) {
          lengths.insert(arguments[1].shape()[2]);
        }
      }
    }
    std::erase_if(lengths, [](int64_t n) { return n < 2; });
    return lengths;
  }

  void Describe(uint32_t s, uint32_t op, KernelClass kind, const std::set<int64_t>& key_lengths,
                CopyGroup& group) const {
    group.example = s;
    group.sort = kind == KernelClass::kCat            ? CopySort::kConcatenate
                 : kind == KernelClass::kMemcpyDevice ? CopySort::kMemcpy
                                                      : CopySort::kOther;
    const uint32_t launch = context_.index.launch(s);
    const auto frame = [&](std::string_view word) {
      return launch != kNone && context_.index.FindAncestor(launch, [&](uint32_t a) {
        return timeline_.slices.category[a] == Category::kPython &&
               timeline_.SliceName(a).find(word) != std::string_view::npos;
      }) != kNone;
    };
    const std::vector<Argument> arguments = ArgumentsOf(timeline_, op);
    // A cache's shape has its length second to last: [.., keys, head_dim].
    const auto is_cache = [&](const Shape& shape) {
      return shape.size() >= 4 && shape.back() >= 32 &&
             std::any_of(key_lengths.begin(), key_lengths.end(), [&](int64_t length) {
               const int64_t keys = shape[shape.size() - 2];
               return keys == length || keys == length - 1;
             });
    };
    double bytes = 0;
    bool cache_shape = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const int element = arguments[i].element_bytes != 0 ? arguments[i].element_bytes : 2;
      for (const Shape& shape : arguments[i].shapes) {
        cache_shape = cache_shape || is_cache(shape);
        // A concatenation writes all its inputs, a copy its first argument.
        if (kind == KernelClass::kCat || i == 0) {
          bytes += static_cast<double>(NumElements(shape)) * element;
        }
      }
    }
    group.bytes_each = bytes;
    if (timeline_.slices.category[s] == Category::kMemcpy) {
      group.bytes_each = static_cast<double>(timeline_.copies[timeline_.slices.detail[s]].bytes);
    }
    const bool repeats = frame("repeat_kv");
    if (repeats || (cache_shape && !arguments.empty() && arguments[0].shape().size() == 5)) {
      group.sort = CopySort::kExpand;
    }
    group.is_kv = group.by_shape = cache_shape || repeats;
    // In a compiled graph only the name is left: a clone of an expanded tensor for an attention
    // call.
    const std::string_view name = timeline_.SliceName(s);
    if (!group.is_kv && name.starts_with("triton_") &&
        name.find("attention") != std::string_view::npos &&
        name.find("clone") != std::string_view::npos &&
        name.find("expand") != std::string_view::npos &&
        timeline_.kernels[timeline_.slices.detail[s]].grid.count() >= kManyBlocks) {
      group.is_kv = true;
      group.sort = CopySort::kExpand;
    }
    if (op != kNone && timeline_.slices.detail[op] != kNone) {
      group.shape = timeline_.Name(timeline_.ops[timeline_.slices.detail[op]].input_dims);
    }
  }

  // An expanded cache has at least this many thread blocks; the query's own copy has a few.
  static constexpr uint64_t kManyBlocks = 512;

  const RuleContext& context_;
  const Timeline& timeline_;
};

// `sized`: the trace tells how many bytes were copied.
std::string_view EvidenceKey(CopySort sort, bool sized) {
  if (!sized) return "kv-copy.evidence.unsized";
  switch (sort) {
    case CopySort::kExpand:
      return "kv-copy.evidence.expand";
    case CopySort::kConcatenate:
      return "kv-copy.evidence.cat";
    case CopySort::kMemcpy:
    case CopySort::kOther:
      break;
  }
  return "kv-copy.evidence.copy";
}

}  // namespace

void KvCopy(const RuleContext& context, Findings& findings) {
  const Bucket* bucket = context.steps.Main(Phase::kDecode);
  if (bucket == nullptr || bucket->counted.empty() ||
      context.steps.all[bucket->counted.front()].num_work == 0) {
    findings.abstained.push_back({"kv-copy", {"abstain.no_decode_gpu_steps", {}}});
    return;
  }
  const KvCopies copies(context);
  std::vector<double> shares;
  std::vector<double> totals;
  std::vector<std::vector<CopyGroup>> groups;
  for (const uint32_t step : bucket->counted) {
    groups.push_back(copies.Groups(context.steps.all[step]));
    double total = 0;
    for (const CopyGroup& g : groups.back()) total += g.is_kv ? static_cast<double>(g.total_ns) : 0;
    totals.push_back(total);
    shares.push_back(total /
                     static_cast<double>(std::max<int64_t>(context.account(step).busy_ns, 1)));
  }
  const double share = Median(shares);
  const double total = Median(totals);
  const bool handbook = context.thresholds.enabled("kv-copy.handbook_abs_ms") &&
                        total / 1e6 > context.thresholds["kv-copy.handbook_abs_ms"];
  const bool severe = share >= context.thresholds["kv-copy.severe_share"];
  if (!severe && !handbook && share < context.thresholds["kv-copy.warn_share"]) return;

  // The step whose total is nearest to the median stands for all.
  size_t typical = 0;
  for (size_t i = 1; i < totals.size(); ++i) {
    if (std::fabs(totals[i] - total) < std::fabs(totals[typical] - total)) typical = i;
  }
  Finding finding{.id = "kv-copy", .phase = Phase::kDecode};
  double saving_ns = total;
  bool certain = true;
  bool expands = false;
  bool concatenates = false;
  for (const CopyGroup& g : groups[typical]) {
    if (!g.is_kv) continue;
    certain = certain && g.by_shape;
    expands = expands || g.sort == CopySort::kExpand;
    if (g.sort == CopySort::kConcatenate) {
      concatenates = true;
      saving_ns -= std::min(g.count * kAppendNs, static_cast<double>(g.total_ns));
    }
    const double each = static_cast<double>(g.total_ns) / g.count;
    Evidence evidence{.text = {EvidenceKey(g.sort, g.bytes_each > 0),
                               {{"count", std::to_string(g.count)},
                                {"each_us", Number(each / 1e3)},
                                {"bytes", HumanBytes(static_cast<uint64_t>(g.bytes_each))},
                                {"rate", Number(g.bytes_each / each)},
                                {"shape", g.shape.empty() ? "-" : g.shape},
                                {"stack", context.index.PythonStack(g.example, 3)}}},
                      .slice = g.example,
                      .value = static_cast<double>(g.total_ns) / 1e6,
                      .unit = "ms"};
    finding.evidence.push_back(std::move(evidence));
  }
  finding.severity = severe && certain ? Severity::kSevere : Severity::kWarn;
  finding.confidence = ConfidenceFor(context, *bucket, false) - (certain ? 0 : 0.35);
  finding.title = {"kv-copy.title", {{"ms", Duration(total)}, {"share", Percent(share)}}};
  finding.saving_ms_per_step = std::max(0.0, saving_ns) / 1e6;
  finding.thresholds.push_back(
      context.thresholds.Used(severe ? "kv-copy.severe_share" : "kv-copy.warn_share"));
  finding.thresholds.push_back(context.thresholds.Used("kv-copy.handbook_abs_ms"));
  finding.change = {expands && concatenates ? "kv-copy.change.both"
                    : expands               ? "kv-copy.change.expand"
                    : concatenates          ? "kv-copy.change.cat"
                                            : "kv-copy.change.copy",
                    {}};
  finding.risk = {"kv-copy.risk", {}};
  finding.undo = {"kv-copy.undo", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace fathom::diagnose
