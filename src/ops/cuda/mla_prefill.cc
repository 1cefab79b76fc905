#include "ops/cuda/mla_prefill.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/merge_states_params.h"
#include "kernels/cuda/prefill_schedule.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

constexpr int64_t kAlignment = 256;
constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kPartStep = cuda::kPrefillTileKeys;  // parts are whole tiles of keys
constexpr int64_t kGemmBytes = int64_t{32} << 20;      // what cuBLAS asks for on Hopper

int64_t AlignTo(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t KeyBytes(int64_t num_heads) {
  return (cuda::kMlaLatent + cuda::kMlaRope + num_heads * (cuda::kMlaNope + cuda::kMlaV)) * 2;
}

int64_t TotalKeys(const MlaPrefillShape& s) {
  return s.max_total_kv_tokens != 0 ? s.max_total_kv_tokens
                                    : int64_t{s.num_sequences} * s.max_kv_tokens;
}

struct Layout {
  int64_t prefill, tiles_per_part, num_tiles, tiles, line, pieces, latents, k_pe, k, v, state_out,
      state_lse, merged_out, merged_lse, gemm, total;
};

Layout LayOut(const MlaPrefillPlan& plan) {
  const MlaPrefillShape& s = plan.shape;
  const int64_t parts = plan.num_parts;
  const int64_t rows = int64_t{s.num_tokens} * s.num_heads;
  const int64_t states = std::min(plan.num_parts, plan.max_states);
  const bool merged = plan.num_parts > plan.max_states;
  Layout layout{};
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t start = at;
    at += AlignTo(bytes, kAlignment);
    return start;
  };
  layout.prefill = take(plan.zeroed_bytes);
  layout.num_tiles = take(parts * 4);
  layout.tiles_per_part = plan.prefill.max_tiles;
  layout.tiles =
      take(parts * layout.tiles_per_part * static_cast<int64_t>(sizeof(cuda::PrefillTile)));
  layout.line = take((int64_t{s.num_sequences} + 1) * 4);
  layout.pieces = take(3 * parts * s.num_sequences * 4);
  layout.latents = take(int64_t{plan.part_keys} * cuda::kMlaLatent * 2);
  layout.k_pe = take(int64_t{plan.part_keys} * cuda::kMlaRope * 2);
  layout.k = take(int64_t{plan.part_keys} * s.num_heads * cuda::kMlaNope * 2);
  layout.v = take(int64_t{plan.part_keys} * s.num_heads * cuda::kMlaV * 2);
  layout.state_out = take((states - 1) * rows * cuda::kMlaV * 2);
  layout.state_lse = take(parts > 1 ? states * rows * 4 : 0);
  layout.merged_out = take(merged ? rows * cuda::kMlaV * 4 : 0);
  layout.merged_lse = take(merged ? rows * 4 : 0);
  layout.gemm = take(plan.gemm_bytes);
  layout.total = at;
  return layout;
}

Status CheckShape(const MlaPrefillShape& s, const MlaPrefillOptions& options) {
  if (s.num_sequences < 1 || s.num_tokens < 1 || s.max_kv_tokens < 1 || s.num_heads < 1) {
    return Err(Code::kInvalidArgument,
               "MLA prefill: {} sequences, {} query tokens, {} keys, {} heads: expected at least "
               "one of each",
               s.num_sequences, s.num_tokens, s.max_kv_tokens, s.num_heads);
  }
  if (s.nope_dim != cuda::kMlaNope || s.rope_dim != cuda::kMlaRope ||
      s.latent_dim != cuda::kMlaLatent || s.v_dim != cuda::kMlaV) {
    return Err(Code::kUnsupported,
               "MLA prefill: head dims {} + {} rotated, values {}, latents {}: supported are {} + "
               "{}, {} and {}",
               s.nope_dim, s.rope_dim, s.v_dim, s.latent_dim, cuda::kMlaNope, cuda::kMlaRope,
               cuda::kMlaV, cuda::kMlaLatent);
  }
  if (s.page_tokens != 16 && s.page_tokens != 32 && s.page_tokens != 64 && s.page_tokens != 128) {
    return Err(Code::kInvalidArgument,
               "MLA prefill: page size {}: expected 16, 32, 64 or 128 (latents are always paged)",
               s.page_tokens);
  }
  const int64_t total = TotalKeys(s);
  if (s.max_total_kv_tokens < 0 || total < s.max_kv_tokens || total > kMax32 / 2) {
    return Err(Code::kInvalidArgument,
               "MLA prefill: {} keys of all sequences, {} of one: expected at least those of one "
               "and at most {}",
               total, s.max_kv_tokens, kMax32 / 2);
  }
  if (options.max_states < 2 || options.max_states > cuda::kMaxMergeStates) {
    return Err(Code::kInvalidArgument,
               "MLA prefill: {} partial results merged at once: expected 2 to {}",
               options.max_states, cuda::kMaxMergeStates);
  }
  const int64_t smallest = kPartStep * KeyBytes(s.num_heads);
  if (options.expanded_bytes < smallest) {
    return Err(
        Code::kInvalidArgument,
        "MLA prefill: {} bytes for expanded keys and values: expected at least {}, a part of "
        "{} keys and {} heads",
        options.expanded_bytes, smallest, kPartStep, s.num_heads);
  }
  return {};
}

}  // namespace

Result<MlaPrefillPlan> PlanMlaPrefill(const MlaPrefillShape& shape,
                                      const MlaPrefillOptions& options, const GpuLimits& gpu) {
  FATHOM_TRY(CheckShape(shape, options));
  MlaPrefillPlan plan;
  plan.shape = shape;
  plan.shape.max_total_kv_tokens = TotalKeys(shape);
  const int64_t total = AlignTo(plan.shape.max_total_kv_tokens, kPartStep);
  const int64_t fitting =
      std::min(options.expanded_bytes / KeyBytes(shape.num_heads) / kPartStep * kPartStep, total);
  const int64_t parts = (total + fitting - 1) / fitting;
  // Even parts: the last one costs as much as any other.
  const int64_t part_keys = AlignTo((total + parts - 1) / parts, kPartStep);
  plan.num_parts = static_cast<int32_t>(parts);
  plan.part_keys = static_cast<int32_t>(part_keys);
  plan.max_states = options.max_states;
  FATHOM_ASSIGN_OR_RETURN(
      plan.prefill,
      PlanPrefillAttention(
          {.num_sequences = shape.num_sequences,
           .num_tokens = shape.num_tokens,
           .max_kv_tokens = static_cast<int32_t>(std::min<int64_t>(shape.max_kv_tokens, part_keys)),
           .max_total_kv_tokens = part_keys,
           .num_heads = shape.num_heads,
           .num_kv_heads = shape.num_heads,
           .head_dim_qk = shape.nope_dim + shape.rope_dim,
           .head_dim_v = shape.v_dim,
           .page_tokens = 0,
           .causal = shape.causal,
           .dtype = shape.dtype},
          {.portable = options.portable, .tuning = options.tuning}, gpu));
  plan.zeroed_bytes = plan.prefill.zeroed_bytes;
  plan.gemm_bytes = kGemmBytes;
  const Layout layout = LayOut(plan);
  plan.expanded_bytes = layout.state_out - layout.latents;
  plan.state_bytes = layout.gemm - layout.state_out;
  plan.workspace_bytes = layout.total;
  return plan;
}

std::string MlaPrefillPlan::Describe() const {
  return fmt::format(
      "{} parts of {} keys expanded into {} bytes, {} bytes of partial results (merged {} at "
      "once), {} bytes for cuBLAS, workspace {} bytes; {}",
      num_parts, part_keys, expanded_bytes, state_bytes, std::min(max_states, num_parts),
      gemm_bytes, workspace_bytes, prefill.Describe());
}

void BindMlaPrefillWorkspace(const MlaPrefillPlan& plan, void* workspace,
                             cuda::MlaPrefillParams* params) {
  const Layout layout = LayOut(plan);
  auto* base = static_cast<char*>(workspace);
  const auto at = [base](int64_t offset) { return base + offset; };
  const int64_t pieces = int64_t{plan.num_parts} * plan.shape.num_sequences;
  params->num_sequences = plan.shape.num_sequences;
  params->num_heads = plan.shape.num_heads;
  params->page_tokens = plan.shape.page_tokens;
  params->causal = plan.shape.causal;
  params->float16 = plan.shape.dtype == DType::kF16;
  params->num_parts = plan.num_parts;
  params->part_keys = plan.part_keys;
  params->max_kv_tokens = plan.prefill.shape.max_kv_tokens;
  params->max_states = plan.max_states;
  params->line = reinterpret_cast<int32_t*>(at(layout.line));
  params->piece_starts = reinterpret_cast<int32_t*>(at(layout.pieces));
  params->piece_lengths = params->piece_starts + pieces;
  params->causal_lengths = params->piece_lengths + pieces;
  params->latents = at(layout.latents);
  params->k_pe = at(layout.k_pe);
  params->k = at(layout.k);
  params->v = at(layout.v);
  params->state_out = at(layout.state_out);
  params->state_lse = reinterpret_cast<float*>(at(layout.state_lse));
  params->state_rows = int64_t{plan.shape.num_tokens} * plan.shape.num_heads;
  params->merged_out = reinterpret_cast<float*>(at(layout.merged_out));
  params->merged_lse = reinterpret_cast<float*>(at(layout.merged_lse));
  params->gemm_workspace = at(layout.gemm);
  params->gemm_workspace_bytes = plan.gemm_bytes;
  BindPrefillWorkspace(plan.prefill, at(layout.prefill), &params->prefill);
  params->prefill.num_tiles = reinterpret_cast<int32_t*>(at(layout.num_tiles));
  params->prefill.tiles = reinterpret_cast<cuda::PrefillTile*>(at(layout.tiles));
  params->tiles_per_part = layout.tiles_per_part;
}

Status CheckMlaPrefillParams(const MlaPrefillPlan& plan, const cuda::MlaPrefillParams& params) {
  const auto require = [](const char* name, const void* pointer, uintptr_t alignment) -> Status {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
      return Err(Code::kInvalidArgument,
                 "MLA prefill: {} is {}: expected a {}-byte aligned device pointer", name, pointer,
                 alignment);
    }
    return {};
  };
  FATHOM_TRY(require("q", params.q, 16));
  FATHOM_TRY(require("latents", params.plane[0].base, 16));
  FATHOM_TRY(require("rotated keys", params.plane[1].base, 16));
  FATHOM_TRY(require("w_uk", params.w_uk, 16));
  FATHOM_TRY(require("w_uv", params.w_uv, 16));
  FATHOM_TRY(require("out", params.out, 16));
  FATHOM_TRY(require("page_table", params.page_table, 4));
  FATHOM_TRY(require("kv_lengths", params.kv_lengths, 4));
  FATHOM_TRY(require("query_starts", params.query_starts, 4));
  FATHOM_TRY(require("workspace", params.prefill.next, kAlignment));
  for (const int64_t stride : {params.q_token_stride, params.q_head_stride}) {
    if (stride <= 0 || stride % 8 != 0) {
      return Err(Code::kInvalidArgument,
                 "MLA prefill: query stride of {} elements: expected a positive multiple of 8 (16 "
                 "bytes)",
                 stride);
    }
  }
  for (const cuda::PagedPlane& plane : params.plane) {
    for (const int64_t stride : {plane.page_stride_bytes, plane.token_stride_bytes}) {
      if (stride <= 0 || stride % 16 != 0 || stride >= int64_t{1} << 40) {
        return Err(
            Code::kInvalidArgument,
            "MLA prefill: cache stride of {} bytes: expected a positive multiple of 16 below "
            "2^40",
            stride);
      }
    }
  }
  if (params.num_tokens < 1 || params.num_tokens > plan.shape.num_tokens) {
    return Err(Code::kInvalidArgument, "MLA prefill: {} query tokens: expected 1 to {}",
               params.num_tokens, plan.shape.num_tokens);
  }
  const int64_t entries =
      (int64_t{plan.shape.max_kv_tokens} + plan.shape.page_tokens - 1) / plan.shape.page_tokens;
  if (params.page_tokens != plan.shape.page_tokens || params.page_table_stride < entries) {
    return Err(
        Code::kInvalidArgument,
        "MLA prefill: pages of {} tokens, table rows of {} entries: the plan is for pages of "
        "{} and needs {} entries",
        params.page_tokens, params.page_table_stride, plan.shape.page_tokens, entries);
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale)) {
    return Err(Code::kInvalidArgument, "MLA prefill: scale {}: expected a positive number",
               params.scale);
  }
  return {};
}

}  // namespace fathom::ops
