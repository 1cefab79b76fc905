#include "ops/attention_mla.h"

namespace fathom::ops::attention {

size_t MlaWeights::Bytes() const {
  size_t bytes = 0;
  for (const Head& head : heads) {
    bytes += head.uk_absorb.Bytes() + head.uk.Bytes() + head.uv.Bytes();
  }
  return bytes;
}

Result<MlaWeights> PackMlaWeights(const linear::WeightSource& kv_b_proj, const MlaShape& shape,
                                  Device& device, const kernels::cpu::KernelTable& cpu) {
  const int64_t head_rows = int64_t{shape.nope_dim} + shape.v_dim;
  const TensorView& all = kv_b_proj.weight;
  if (kv_b_proj.transposed || all.rank != 2 || all.shape[0] != shape.num_heads * head_rows ||
      all.shape[1] != shape.kv_lora_rank) {
    return Err(Code::kInvalidArgument, "kv_b_proj [{}, {}]: expected [{}, {}] for {} heads",
               all.shape[0], all.shape[1], shape.num_heads * head_rows, shape.kv_lora_rank,
               shape.num_heads);
  }
  // Scale blocks need not end where a head does: dequantise first.
  std::vector<float> dequantised;
  linear::WeightSource source = kv_b_proj;
  if (kv_b_proj.scales) {
    dequantised.resize(static_cast<size_t>(all.shape[0] * all.shape[1]));
    FATHOM_TRY(linear::ToF32(kv_b_proj, dequantised));
    source.scales.reset();
    source.weight =
        TensorView::Contiguous(dequantised.data(), DType::kF32, {all.shape[0], all.shape[1]});
  }
  const auto part = [&source](int64_t first_row, int64_t rows, bool transposed) {
    linear::WeightSource slice = source;
    slice.weight.data = static_cast<std::byte*>(source.weight.data) +
                        first_row * source.weight.stride[0] * SizeOf(source.weight.dtype);
    slice.weight.shape[0] = rows;
    slice.transposed = transposed;
    return slice;
  };
  MlaWeights weights;
  for (int32_t h = 0; h < shape.num_heads; ++h) {
    const int64_t row = h * head_rows;
    MlaWeights::Head head;
    FATHOM_ASSIGN_OR_RETURN(head.uk_absorb, linear::Pack(part(row, shape.nope_dim, true),
                                                         shape.precision, device, cpu));
    FATHOM_ASSIGN_OR_RETURN(head.uk, linear::Pack(part(row, shape.nope_dim, false), shape.precision,
                                                  device, cpu, linear::Layout::kRowMajor));
    FATHOM_ASSIGN_OR_RETURN(head.uv, linear::Pack(part(row + shape.nope_dim, shape.v_dim, false),
                                                  shape.precision, device, cpu));
    weights.heads.push_back(std::move(head));
  }
  return weights;
}

size_t PackedMlaBytes(DType stored, const MlaShape& shape) {
  const size_t left_operand = shape.precision == Precision::kBF16 ? 2 : 4;
  const size_t uk = static_cast<size_t>(shape.nope_dim) *
                    static_cast<size_t>(host::EvenUp(shape.kv_lora_rank)) * left_operand;
  return static_cast<size_t>(shape.num_heads) *
         (linear::PackedBytes(stored, shape.kv_lora_rank, shape.nope_dim, shape.precision) + uk +
          linear::PackedBytes(stored, shape.v_dim, shape.kv_lora_rank, shape.precision));
}

Result<Plan> MakePlan(const MlaShape& shape, const CacheFormat& format, const StepBucket& bucket,
                      int num_threads) {
  FATHOM_TRY(CheckFormat(format, PlaneKind::kC, 1, shape.kv_lora_rank));
  FATHOM_TRY(CheckFormat(format, PlaneKind::kKPe, 1, shape.rope_dim));
  // Both paths run one after the other in the same memory.
  const size_t bytes = std::max(MlaPrompt(shape, format, bucket, num_threads, nullptr).bytes(),
                                MlaGenerated(shape, format, bucket, num_threads, nullptr).bytes());
  return Plan{bucket, bytes + Arena::kAlignment};
}

Status Run(const Plan& plan, const MlaShape& shape, const MlaWeights& weights, const MlaArgs& args,
           const StepInputs& inputs, Context& context) {
  host::CheckHeads(args.q, shape.num_heads, int64_t{shape.nope_dim} + shape.rope_dim,
                   "attention q");
  host::CheckHeads(args.out, shape.num_heads, shape.v_dim, "attention out");
  FATHOM_CHECK(weights.heads.size() == static_cast<size_t>(shape.num_heads));
  const ArenaScope scope(context.arena);
  auto* memory = static_cast<std::byte*>(context.arena.Allocate(plan.workspace_bytes));
  const MlaCall call{shape, args, inputs, &weights};
  context.device.Execute(
      context.stream, [runtime = host::Runtime(context), bucket = plan.bucket, call, memory] {
        const int threads = runtime.pool->num_threads();
        const CacheFormat& format = call.args.cache.format;
        MlaPrompt(call.shape, format, bucket, threads, memory).Run(runtime, call);
        MlaGenerated(call.shape, format, bucket, threads, memory).Run(runtime, call);
      });
  return {};
}

}  // namespace fathom::ops::attention
