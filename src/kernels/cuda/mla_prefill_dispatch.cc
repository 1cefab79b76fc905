#include <algorithm>

#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {
namespace {

// The attention of all queries over one part.
PrefillParams PartParams(const MlaPrefillParams& params, int part) {
  const int64_t head_bytes = kMlaNope * 2;
  const int64_t token_bytes = params.num_heads * head_bytes;
  static_assert(kMlaNope == kMlaV);
  PrefillParams p = params.prefill;
  p.q = params.q;
  p.q_token_stride = params.q_token_stride;
  p.q_head_stride = params.q_head_stride;
  p.num_tokens = params.num_tokens;
  p.k = {params.k, params.part_keys * token_bytes, token_bytes, head_bytes};
  p.v = {params.v, params.part_keys * token_bytes, token_bytes, head_bytes};
  p.k_pe = {params.k_pe, int64_t{params.part_keys} * kMlaRope * 2, kMlaRope * 2, kMlaRope * 2};
  p.num_pages = 1;
  p.page_tokens = params.part_keys;
  const int64_t pieces = int64_t{part} * params.num_sequences;
  p.kv_starts = params.piece_starts + pieces;
  p.kv_lengths = params.piece_lengths + pieces;
  p.causal_lengths = params.causal_lengths + pieces;
  p.query_starts = params.query_starts;
  p.out_token_stride = int64_t{params.num_heads} * kMlaV;
  p.out_head_stride = kMlaV;
  p.scale = params.scale;
  p.tiles += part * params.tiles_per_part;
  p.num_tiles += part;
  return p;
}

// Keys and values of a part.
cudaError_t ExpandPart(const MlaPrefillParams& params, int part, const GemmFunction& gemm,
                       cudaStream_t stream) {
  if (const cudaError_t status = GatherLatents(params, part, stream); status != cudaSuccess) {
    return status;
  }
  GemmParams g;
  g.a = params.latents;
  g.m = params.part_keys;
  g.n = int64_t{params.num_heads} * kMlaNope;
  g.k = kMlaLatent;
  g.float16 = params.float16;
  g.workspace = params.gemm_workspace;
  g.workspace_bytes = params.gemm_workspace_bytes;
  g.b = params.w_uk;
  g.c = params.k;
  if (const cudaError_t status = gemm(g, stream); status != cudaSuccess) return status;
  g.b = params.w_uv;
  g.c = params.v;
  return gemm(g, stream);
}

}  // namespace

cudaError_t PrepareMlaPrefill(const MlaPrefillParams& params, int rows, cudaStream_t stream) {
  cudaError_t status = PrepareMlaParts(params, stream);
  for (int part = 0; part < params.num_parts && status == cudaSuccess; ++part) {
    status = PreparePrefill(PartParams(params, part), rows, params.max_kv_tokens, stream);
  }
  return status;
}

cudaError_t RunMlaPrefill(const MlaPrefillParams& params, const GemmFunction& gemm,
                          cudaStream_t stream) {
  const int slots = std::min(params.num_parts, params.max_states) - 1;  // `out` is one more
  const int64_t rows = params.num_tokens * params.num_heads;
  MergeStatesParams merge;
  merge.dim = kMlaV;
  merge.rows = rows;
  merge.float16 = params.float16;
  merge.out_row_stride = kMlaV;
  int used = 0;  // slots
  for (int part = 0; part < params.num_parts; ++part) {
    if (const cudaError_t status = ExpandPart(params, part, gemm, stream); status != cudaSuccess) {
      return status;
    }
    PrefillParams attend = PartParams(params, part);
    const bool only = params.num_parts == 1;
    attend.out = used == slots
                     ? params.out
                     : static_cast<uint16_t*>(params.state_out) + used * params.state_rows * kMlaV;
    attend.lse = only ? params.lse : params.state_lse + used * params.state_rows;
    if (const cudaError_t status = RunPrefill(kMlaNope + kMlaRope, kMlaV, attend, stream);
        status != cudaSuccess || only) {
      return status;
    }
    merge.states[merge.num_states++] = {
        .out = attend.out, .lse = attend.lse, .row_stride = kMlaV, .float32 = false};
    ++used;
    const bool last = part + 1 == params.num_parts;
    if (!last && merge.num_states < params.max_states) continue;
    merge.out = last ? params.out : static_cast<void*>(params.merged_out);
    merge.out_float32 = !last;
    merge.lse = last ? params.lse : params.merged_lse;
    if (const cudaError_t status = RunMergeStates(merge, stream); status != cudaSuccess) {
      return status;
    }
    merge.states[0] = {
        .out = params.merged_out, .lse = params.merged_lse, .row_stride = kMlaV, .float32 = true};
    merge.num_states = 1;
    used = 0;
  }
  return cudaSuccess;
}

}  // namespace fathom::kernels::cuda
