#include "ops/attention.h"
#include "ops/paged_span.h"
#include "ops/panels.h"

namespace fathom::ops::attention {
namespace {

// Query rows of an item: enough that packing a panel of keys costs little beside its products,
// few enough that scores and states stay in the second-level cache.
constexpr int32_t kItemRows = 128;

struct Workspace {
  Workspace(const GqaShape& shape, const CacheFormat& format, const StepBucket& bucket,
            int num_threads, std::byte* memory)
      : group(shape.num_heads / shape.num_kv_heads),
        tokens_per_item(std::clamp(kItemRows / group, 1, std::max(bucket.max_query_tokens, 1))),
        span{.key_planes = {*format.Find(PlaneKind::kK), {}},
             .num_key_planes = 1,
             .values = *format.Find(PlaneKind::kV),
             .operands = Operands(shape.precision, format.Find(PlaneKind::kK)->dtype),
             .scale = shape.softmax_scale,
             .rows_per_token = group,
             .max_rows = int64_t{tokens_per_item} * group,
             .key_dim = shape.head_dim,
             .value_dim = shape.head_dim_v} {
    Carver carver(memory);
    of_items =
        ItemMemory(carver, MaxItems(bucket, tokens_per_item, shape.num_kv_heads), num_threads,
                   span.max_rows, shape.head_dim_v, [this](Carver& one) { span.Carve(one); });
    bytes = carver.used();
  }

  int32_t group;
  int32_t tokens_per_item;
  PagedSpan span;
  ItemMemory of_items;
  size_t bytes = 0;
};

}  // namespace

Result<Plan> MakePlan(const GqaShape& shape, const CacheFormat& format, const StepBucket& bucket,
                      int num_threads) {
  if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    return Err(Code::kInvalidArgument,
               "attention of {} heads over {} key-value heads: expected a multiple",
               shape.num_heads, shape.num_kv_heads);
  }
  FATHOM_TRY(CheckFormat(format, PlaneKind::kK, shape.num_kv_heads, shape.head_dim));
  FATHOM_TRY(CheckFormat(format, PlaneKind::kV, shape.num_kv_heads, shape.head_dim_v));
  const Workspace workspace(shape, format, bucket, num_threads, nullptr);
  return Plan{bucket, workspace.bytes + Arena::kAlignment};
}

Status Run(const Plan& plan, const GqaShape& shape, const GqaArgs& args, const StepInputs& inputs,
           Context& context) {
  host::CheckHeads(args.q, shape.num_heads, shape.head_dim, "attention q");
  host::CheckHeads(args.out, shape.num_heads, shape.head_dim_v, "attention out");
  const ArenaScope scope(context.arena);
  auto* memory = static_cast<std::byte*>(context.arena.Allocate(plan.workspace_bytes));
  context.device.Execute(context.stream, [runtime = host::Runtime(context), bucket = plan.bucket,
                                          shape, args, inputs, memory] {
    const kernels::cpu::KernelTable& cpu = *runtime.cpu;
    const int threads = runtime.pool->num_threads();
    const Workspace ws(shape, args.cache.format, bucket, threads, memory);
    const int64_t num_items =
        ListItems(inputs, nullptr, ws.tokens_per_item, shape.num_kv_heads, ws.of_items.items);
    const auto group = static_cast<size_t>(args.page_table);
    const auto compute = [&](const Item& item, int32_t span, int worker, const State& out) {
      Carver carver = ws.of_items.ScratchOf(worker);
      const PagedSpan::Scratch scratch = ws.span.Carve(carver);
      for (int32_t t = 0; t < item.num_tokens; ++t) {
        for (int32_t g = 0; g < ws.group; ++g) {
          const float* q = host::Row(args.q, item.first_token + t) +
                           (item.head * ws.group + g) * args.q.stride[1];
          ws.span.StageQuery(cpu, q, shape.head_dim, 0, t * ws.group + g, scratch);
        }
      }
      const PageReader reader(
          args.cache, args.layer,
          inputs.page_tables[group] + item.sequence * inputs.page_table_stride[group]);
      ws.span.Run(cpu, reader, item, span, scratch, out);
    };
    const auto finish = [&](const Item& item, const State& state) {
      for (int32_t t = 0; t < item.num_tokens; ++t) {
        for (int32_t g = 0; g < ws.group; ++g) {
          const int64_t row = t * ws.group + g;
          cpu.divide_row(state.o + row * shape.head_dim_v, state.l[row],
                         host::Row(args.out, item.first_token + t) +
                             (item.head * ws.group + g) * args.out.stride[1],
                         shape.head_dim_v);
        }
      }
    };
    ItemRunner(threads, ws.span.max_rows, shape.head_dim_v, ws.of_items.states)
        .Run(runtime, ws.of_items.items, num_items, ws.group, compute, finish);
  });
  return {};
}

}  // namespace fathom::ops::attention
