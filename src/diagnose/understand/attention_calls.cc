#include "diagnose/understand/attention_calls.h"

#include <algorithm>
#include <map>

#include "cost/op_cost.h"
#include "diagnose/understand/shapes.h"

namespace fathom::diagnose {

double AttentionCall::RoofShare(const cost::Hardware& hardware) const {
  const double floor =
      cost::RooflineSeconds(cost, hardware.memory_bytes_per_s, hardware.bf16_flops_per_s);
  return busy_ns > 0 ? floor / (static_cast<double>(busy_ns) / 1e9) : 0;
}

bool AttentionCall::MemoryBound(const cost::Hardware& hardware) const {
  return cost.bytes / hardware.memory_bytes_per_s > cost.flops / hardware.bf16_flops_per_s;
}

std::vector<AttentionCall> FindAttentionCalls(const TraceIndex& index, const Steps& steps,
                                              const Step& step) {
  const Timeline& timeline = index.timeline();
  const Slices& slices = timeline.slices;
  std::map<uint32_t, AttentionCall> calls;  // operator -> call
  for (const uint32_t s : steps.WorkOf(step)) {
    const KernelClass kind = index.kind(s);
    if (kind != KernelClass::kAttention) continue;
    const uint32_t op = index.op(s);
    if (op == kNone || ClassifyOperator(timeline.SliceName(op)) != KernelClass::kAttention)
      continue;
    AttentionCall& call = calls[op];
    if (call.op == kNone) {
      const std::vector<Argument> arguments = ArgumentsOf(timeline, op);
      if (arguments.size() < 3 || arguments[0].shape().size() != 4 ||
          arguments[1].shape().size() != 4 || arguments[2].shape().size() != 4) {
        calls.erase(op);
        continue;
      }
      const Shape& q = arguments[0].shape();
      const Shape& k = arguments[1].shape();
      const Shape& v = arguments[2].shape();
      call.op = op;
      call.batch = static_cast<double>(q[0]);
      call.heads = static_cast<double>(q[1]);
      call.queries = static_cast<double>(q[2]);
      call.dim = static_cast<double>(q[3]);
      call.kv_heads = static_cast<double>(k[1]);
      call.keys = static_cast<double>(k[2]);
      call.dim_v = static_cast<double>(v[3]);
      call.causal = call.queries > 1;
      const double pairs = call.batch * (call.causal ? cost::CausalPairs(call.queries, call.keys)
                                                     : call.queries * call.keys);
      const double element = arguments[1].element_bytes != 0 ? arguments[1].element_bytes : 2;
      call.cost.flops = 2 * pairs * call.heads * (call.dim + call.dim_v);
      call.cost.bytes = element * call.batch *
                        (call.keys * call.kv_heads * (call.dim + call.dim_v) +
                         call.queries * call.heads * (call.dim + call.dim_v));
    }
    call.busy_ns += slices.dur_ns[s];
    if (call.kernel == kNone || slices.dur_ns[s] > slices.dur_ns[call.kernel]) call.kernel = s;
  }
  std::vector<AttentionCall> list;
  for (const auto& [op, call] : calls) list.push_back(call);
  return list;
}

std::optional<cost::Hardware> HardwareOf(const Timeline& timeline, const TraceIndex& index,
                                         const Step& step) {
  if (step.num_work == 0) return std::nullopt;
  const GpuKey gpu = index.gpus()[step.gpu];
  for (const DeviceInfo& device : timeline.sources[gpu.source].devices) {
    if (device.id != gpu.device) continue;
    if (const cost::Hardware* hardware = cost::FindHardware(device.name)) return *hardware;
  }
  return std::nullopt;
}

}  // namespace fathom::diagnose
