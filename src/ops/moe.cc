#include "ops/moe.h"

#include <array>
#include <cmath>

#include "ops/panels.h"

namespace fathom::ops::moe {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 32;

// The `count` best of value[0, n), best first, equal ones by index; those marked are passed over.
void SelectBest(const float* value, const bool* excluded, int n, int count, int32_t* chosen) {
  for (int r = 0; r < count; ++r) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
      if (excluded[i] || std::find(chosen, chosen + r, i) != chosen + r) continue;
      if (best < 0 || value[i] > value[best]) best = i;
    }
    chosen[r] = best;
  }
}

// Marks the experts of all but the topk_group best groups.
void ExcludeGroups(const GateSpec& spec, const float* choice, bool* excluded) {
  const int size = spec.num_experts / spec.num_groups;
  std::array<float, kMaxExperts> group_score;
  for (int g = 0; g < spec.num_groups; ++g) {
    const float* members = choice + g * size;
    float best = members[0];
    float second = -std::numeric_limits<float>::infinity();
    for (int i = 1; i < size; ++i) {
      if (members[i] > best) {
        second = best;
        best = members[i];
      } else {
        second = std::max(second, members[i]);
      }
    }
    group_score[static_cast<size_t>(g)] =
        spec.method == TopkMethod::kNoauxTc && size > 1 ? best + second : best;
  }
  const std::array<bool, kMaxExperts> none{};
  std::array<int32_t, kMaxExperts> kept;
  SelectBest(group_score.data(), none.data(), spec.num_groups, spec.topk_group, kept.data());
  std::fill_n(excluded, spec.num_experts, true);
  for (int i = 0; i < spec.topk_group; ++i) {
    std::fill_n(excluded + kept[static_cast<size_t>(i)] * size, size, false);
  }
}

void GateRow(const kernels::cpu::KernelTable& cpu, const GateSpec& spec, const float* logits,
             const float* bias, int32_t* experts, float* weights) {
  const int n = spec.num_experts;
  std::array<float, kMaxExperts> score{};
  if (spec.scoring == Scoring::kSoftmax) {
    const float max = *std::max_element(logits, logits + n);
    for (int i = 0; i < n; ++i) score[static_cast<size_t>(i)] = logits[i] - max;
    cpu.exp_row(score.data(), score.data(), n);
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += score[static_cast<size_t>(i)];
    for (int i = 0; i < n; ++i) score[static_cast<size_t>(i)] /= sum;
  } else {
    for (int i = 0; i < n; ++i) score[static_cast<size_t>(i)] = -logits[i];
    cpu.exp_row(score.data(), score.data(), n);
    for (int i = 0; i < n; ++i) {
      score[static_cast<size_t>(i)] = 1 / (1 + score[static_cast<size_t>(i)]);
    }
  }
  std::array<float, kMaxExperts> choice = score;
  if (bias != nullptr) {
    for (int i = 0; i < n; ++i) choice[static_cast<size_t>(i)] += bias[i];
  }
  std::array<bool, kMaxExperts> excluded{};
  if (spec.method != TopkMethod::kGreedy) ExcludeGroups(spec, choice.data(), excluded.data());
  SelectBest(choice.data(), excluded.data(), n, spec.top_k, experts);
  float sum = 0;
  for (int r = 0; r < spec.top_k; ++r) {
    weights[r] = score[static_cast<size_t>(experts[r])];
    sum += weights[r];
  }
  for (int r = 0; r < spec.top_k; ++r) {
    if (spec.norm_topk_prob) weights[r] /= sum + 1e-20F;
    weights[r] *= spec.routed_scaling_factor;
  }
}

}  // namespace

Status ValidateGate(const GateSpec& spec) {
  if (spec.num_experts < 1 || spec.num_experts > kMaxExperts) {
    return Err(Code::kUnsupported, "{} experts: expected 1 to {}", spec.num_experts, kMaxExperts);
  }
  if (spec.num_groups < 1 || spec.num_experts % spec.num_groups != 0 || spec.topk_group < 1 ||
      spec.topk_group > spec.num_groups) {
    return Err(Code::kInvalidArgument,
               "{} experts in {} groups of which {} are kept: groups must divide the experts, and "
               "1 to all of them be kept",
               spec.num_experts, spec.num_groups, spec.topk_group);
  }
  const int eligible = spec.method == TopkMethod::kGreedy
                           ? spec.num_experts
                           : spec.num_experts / spec.num_groups * spec.topk_group;
  if (spec.top_k < 1 || spec.top_k > std::min(eligible, kMaxTopK)) {
    return Err(Code::kInvalidArgument, "{} experts a token: expected 1 to {}", spec.top_k,
               std::min(eligible, kMaxTopK));
  }
  return {};
}

Status Gate(const GateSpec& spec, const GateArgs& args, Context& context) {
  FATHOM_TRY(ValidateGate(spec));
  host::CheckMatrix(args.logits, spec.num_experts, "gate logits");
  FATHOM_CHECK(args.experts.dtype == DType::kI32 && args.experts.shape[1] == spec.top_k &&
               args.weights.dtype == DType::kF32 && args.weights.shape[1] == spec.top_k);
  FATHOM_CHECK((args.bias != nullptr) == (spec.method == TopkMethod::kNoauxTc));
  context.device.Execute(context.stream, [runtime = host::Runtime(context), spec, args] {
    const int64_t rows = host::LiveRows(args.live_rows, args.logits.shape[0]);
    host::ForRows(runtime, rows, int64_t{spec.num_experts} * spec.top_k * 4, [&](int64_t row) {
      GateRow(*runtime.cpu, spec, host::Row(args.logits, row), args.bias,
              host::Row<int32_t>(args.experts, row), host::Row(args.weights, row));
    });
  });
  return {};
}

namespace {

// Rows of the grouped products lie in `slots` order. Left operands are bf16 or f32 by precision.
struct Workspace {
  Workspace(const ExpertsShape& shape, int64_t tokens, std::byte* memory) {
    const int64_t slots = tokens * shape.top_k;
    const bool bf16 = shape.precision == Precision::kBF16;
    size_t used = 0;
    const auto take = [&](int64_t count, int64_t bytes) {
      std::byte* piece = memory != nullptr ? memory + used : nullptr;
      used += Arena::Align(static_cast<size_t>(count * bytes));
      return piece;
    };
    if (bf16) {
      input = reinterpret_cast<uint16_t*>(take(slots * host::StagedStride(shape.hidden), 2));
    }
    act = take(slots * host::StagedStride(shape.intermediate), bf16 ? 2 : 4);
    expert_out = reinterpret_cast<float*>(take(slots * shape.hidden, 4));
    rows = reinterpret_cast<int32_t*>(take(slots, 4));
    place = reinterpret_cast<int32_t*>(take(slots, 4));
    active = reinterpret_cast<int32_t*>(take(shape.num_experts, 4));
    bytes = used;
  }
  uint16_t* input = nullptr;    // [slots, StagedStride(hidden)] rounded
  std::byte* act = nullptr;     // [slots, StagedStride(intermediate)]
  float* expert_out = nullptr;  // [slots, hidden]
  int32_t* rows = nullptr;      // [slots] the token of each
  int32_t* place = nullptr;     // [tokens * top_k] where a token's rank-th expert lies
  int32_t* active = nullptr;    // experts that have tokens
  size_t bytes = 0;
};

}  // namespace

Plan MakePlan(const ExpertsShape& shape, int64_t max_tokens) {
  const size_t routing =
      Arena::Align(static_cast<size_t>(shape.num_experts + 1) * sizeof(int32_t)) +
      Arena::Align(static_cast<size_t>(max_tokens * shape.top_k) * sizeof(int32_t));
  return {shape, max_tokens,
          Workspace(shape, max_tokens, nullptr).bytes + routing + 3 * Arena::kAlignment};
}

Result<Routing> Prepare(const Plan& plan, const ExpertsArgs& args, Context& context) {
  const ExpertsShape& shape = plan.shape;
  FATHOM_CHECK(args.experts.shape[0] <= plan.max_tokens);
  Routing routing;
  routing.expert_starts = static_cast<int32_t*>(
      context.arena.Allocate(static_cast<size_t>(shape.num_experts + 1) * sizeof(int32_t)));
  routing.slots = static_cast<int32_t*>(context.arena.Allocate(
      static_cast<size_t>(args.experts.shape[0] * shape.top_k) * sizeof(int32_t)));
  context.device.Execute(context.stream, [routing, args, shape] {
    const int64_t tokens = host::LiveRows(args.live_rows, args.experts.shape[0]);
    int32_t* const starts = routing.expert_starts;
    std::fill_n(starts, shape.num_experts + 1, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int r = 0; r < shape.top_k; ++r) ++starts[host::Row<int32_t>(args.experts, t)[r] + 1];
    }
    for (int e = 0; e < shape.num_experts; ++e) starts[e + 1] += starts[e];
    for (int64_t t = 0; t < tokens; ++t) {
      for (int r = 0; r < shape.top_k; ++r) {
        const int32_t expert = host::Row<int32_t>(args.experts, t)[r];
        routing.slots[starts[expert]++] = static_cast<int32_t>(t * shape.top_k + r);
      }
    }
    for (int e = shape.num_experts; e > 0; --e) starts[e] = starts[e - 1];  // filling moved them
    starts[0] = 0;
  });
  return routing;
}

Status Run(const Plan& plan, const ExpertWeights* experts, const Routing& routing,
           const ExpertsArgs& args, Context& context) {
  const ExpertsShape& shape = plan.shape;
  host::CheckMatrix(args.input, shape.hidden, "experts input");
  host::CheckMatrix(args.output, shape.hidden, "experts output");
  const ArenaScope scope(context.arena);
  const int64_t max_tokens = args.experts.shape[0];
  auto* memory =
      static_cast<std::byte*>(context.arena.Allocate(Workspace(shape, max_tokens, nullptr).bytes));
  context.device.Execute(context.stream, [runtime = host::Runtime(context), shape, experts, routing,
                                          args, max_tokens, memory] {
    const kernels::cpu::KernelTable& cpu = *runtime.cpu;
    const Workspace ws(shape, max_tokens, memory);
    const bool bf16 = shape.precision == Precision::kBF16;
    const int64_t tokens = host::LiveRows(args.live_rows, max_tokens);
    const int64_t slots = tokens * shape.top_k;
    const int32_t* const starts = routing.expert_starts;
    int64_t num_active = 0;
    for (int32_t e = 0; e < shape.num_experts; ++e) {
      if (starts[e + 1] > starts[e]) ws.active[num_active++] = e;
    }
    for (int64_t i = 0; i < slots; ++i) {
      ws.rows[i] = routing.slots[i] / shape.top_k;
      ws.place[routing.slots[i]] = static_cast<int32_t>(i);
    }
    // One piece is a panel of an expert: fn(expert, panel_begin, panel_end).
    const auto for_panels = [&](int64_t panels, const auto& fn) {
      const int64_t pieces = num_active * panels;
      runtime.pool->ParallelFor(pieces, host::PanelRun(pieces, runtime.pool->num_threads()),
                                [&](int64_t begin, int64_t end, int /*worker*/) {
                                  while (begin < end) {
                                    const int64_t first = begin / panels * panels;
                                    const int64_t last = std::min(end, first + panels);
                                    fn(ws.active[begin / panels], begin - first, last - first);
                                    begin = last;
                                  }
                                });
    };

    host::RowsView input{args.input.data, args.input.stride[0], false, ws.rows};
    if (bf16) {  // an expert's rows lie together: gathering them in each panel costs more
      input = {ws.input, host::StagedStride(shape.hidden), true};
      host::ForRows(runtime, slots, int64_t{shape.hidden} * 6, [&](int64_t slot) {
        cpu.round_row(host::Row(args.input, ws.rows[slot]), ws.input + slot * input.stride,
                      shape.hidden);
      });
    }
    const host::GatedRows act{ws.act, host::StagedStride(shape.intermediate), bf16};
    for_panels(host::NumGatedPanels(experts[0].gate_up),
               [&](int32_t expert, int64_t begin, int64_t end) {
                 const int64_t first = starts[expert];
                 host::MultiplyGatedPanels(cpu, input.From(first), experts[expert].gate_up, begin,
                                           end, starts[expert + 1] - first, act.From(first));
               });
    const host::RowsView left{act.data, act.stride, bf16};
    for_panels(host::NumPanels(experts[0].down), [&](int32_t expert, int64_t begin, int64_t end) {
      const int64_t first = starts[expert];
      for (int64_t panel = begin; panel < end; ++panel) {
        host::MultiplyPanel(cpu, left.From(first), experts[expert].down, panel,
                            starts[expert + 1] - first,
                            ws.expert_out + first * shape.hidden + panel * kernels::kPanelColumns,
                            shape.hidden, nullptr, panel + 1);
      }
    });
    host::ForRows(runtime, tokens, int64_t{shape.hidden} * 4 * (shape.top_k + 1), [&](int64_t t) {
      for (int r = 0; r < shape.top_k; ++r) {
        cpu.add_scaled_row(host::Row(args.output, t),
                           ws.expert_out + int64_t{ws.place[t * shape.top_k + r]} * shape.hidden,
                           host::Row(args.weights, t)[r], shape.hidden);
      }
    });
  });
  return {};
}

}  // namespace fathom::ops::moe
