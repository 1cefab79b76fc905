#include "diagnose/understand/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "diagnose/understand/attention_calls.h"
#include "diagnose/understand/shapes.h"

namespace fathom::diagnose {
namespace {

constexpr double kDefaultElementBytes = 2;
// Calls that take less of all calls' time are left out: nobody would speed them up.
constexpr double kLeastShare = 0.002;

// Extents of a matrix product [batch] x m x k x n; all 0 when the operator is none.
struct Product {
  double batch = 1, m = 0, k = 0, n = 0, element = kDefaultElementBytes;
};

Product ProductOf(const Timeline& timeline, uint32_t op) {
  const std::string_view name = timeline.SliceName(op);
  const size_t first = name == "aten::addmm" || name == "aten::baddbmm" ? 1 : 0;
  const bool known = name == "aten::mm" || name == "aten::bmm" || first == 1;
  if (!known) return {};
  const std::vector<Argument> arguments = ArgumentsOf(timeline, op);
  if (arguments.size() < first + 2) return {};
  const Shape& a = arguments[first].shape();
  const Shape& b = arguments[first + 1].shape();
  if (a.size() != b.size() || a.size() < 2 || a.size() > 3) return {};
  Product p;
  const size_t at = a.size() - 2;
  if (at == 1) p.batch = static_cast<double>(a[0]);
  p.m = static_cast<double>(a[at]);
  p.k = static_cast<double>(a[at + 1]);
  p.n = static_cast<double>(b[at + 1]);
  if (arguments[first].element_bytes != 0) p.element = arguments[first].element_bytes;
  return p;
}

void Merge(RooflinePoint point, double seconds, std::map<std::string, RooflinePoint>& points) {
  const std::string key = fmt::format("{} {}", PhaseName(point.phase), point.name);
  RooflinePoint& merged = points.try_emplace(key, std::move(point)).first->second;
  merged.seconds = (merged.seconds * merged.count + seconds) / (merged.count + 1);
  ++merged.count;
}

void AddProducts(const TraceIndex& index, const Steps& steps, const Step& step,
                 std::map<std::string, RooflinePoint>& points) {
  const Timeline& timeline = index.timeline();
  struct Call {
    uint32_t kernel = kNone;
    int64_t ns = 0;
  };
  std::map<uint32_t, Call> calls;  // operator -> its kernels
  for (const uint32_t s : steps.WorkOf(step)) {
    if (index.kind(s) != KernelClass::kGemm || index.op(s) == kNone) continue;
    Call& call = calls[index.op(s)];
    call.ns += timeline.slices.dur_ns[s];
    const bool longest =
        call.kernel == kNone || timeline.slices.dur_ns[s] > timeline.slices.dur_ns[call.kernel];
    if (longest) call.kernel = s;
  }
  for (const auto& [op, call] : calls) {
    const Product p = ProductOf(timeline, op);
    if (p.m == 0) continue;
    RooflinePoint point{.name = fmt::format("gemm {:g} x {:g} x {:g}", p.m, p.n, p.k),
                        .phase = step.phase,
                        .kind = KernelClass::kGemm,
                        .slice = call.kernel};
    if (p.batch > 1) point.name = fmt::format("{:g} x {}", p.batch, point.name);
    point.cost.flops = 2 * p.batch * p.m * p.n * p.k;
    point.cost.bytes = p.element * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n);
    Merge(std::move(point), static_cast<double>(call.ns) / 1e9, points);
  }
}

}  // namespace

Roofline MakeRoofline(const TraceIndex& index, const Steps& steps) {
  Roofline roofline;
  std::map<std::string, RooflinePoint> points;
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kMixed}) {
    const Bucket* bucket = steps.Main(phase);
    if (bucket == nullptr || bucket->counted.empty()) continue;
    const Step& step = steps.all[bucket->counted[bucket->counted.size() / 2]];
    if (step.num_work == 0) continue;
    if (!roofline.hardware) roofline.hardware = HardwareOf(index.timeline(), index, step);
    for (const AttentionCall& call : FindAttentionCalls(index, steps, step)) {
      RooflinePoint point{.name = fmt::format("attention {:g} x {:g} keys, {:g}/{:g} heads",
                                              call.queries, call.keys, call.heads, call.kv_heads),
                          .phase = phase,
                          .kind = KernelClass::kAttention,
                          .slice = call.kernel,
                          .cost = call.cost};
      Merge(std::move(point), static_cast<double>(call.busy_ns) / 1e9, points);
    }
    AddProducts(index, steps, step, points);
  }
  double total = 0;
  for (const auto& [key, point] : points) total += point.seconds * point.count;
  for (auto& [key, point] : points) {
    if (point.seconds * point.count < kLeastShare * total) continue;
    roofline.points.push_back(std::move(point));
  }
  std::stable_sort(roofline.points.begin(), roofline.points.end(),
                   [](const RooflinePoint& a, const RooflinePoint& b) {
                     return a.seconds * a.count > b.seconds * b.count;
                   });
  return roofline;
}

}  // namespace fathom::diagnose
