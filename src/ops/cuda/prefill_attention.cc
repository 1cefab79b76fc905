#include "ops/cuda/prefill_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;

constexpr int64_t kAlignment = 256;
constexpr int64_t kDefaultL2Bytes = int64_t{60} << 20;  // of the H200

int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Heads whose tiles are taken before the next ones'. Their keys and values should stay in L2, and
// the fewer they are, the better short and long tiles mix; but a section ends as unevenly as a
// whole run does, and a last one that is smaller than the others more so. So: the smallest equal
// sections that have a few tiles for each SM, within four fifths of L2; nearly equal ones where the
// number of heads has no such divisor.
int64_t SectionKvHeads(const PrefillAttentionPlan& plan, int64_t head_bytes, const GpuLimits& gpu) {
  constexpr int64_t kTilesOfSm = 4;
  const PrefillAttentionShape& s = plan.shape;
  const int64_t l2_bytes = gpu.l2_bytes > 0 ? gpu.l2_bytes : kDefaultL2Bytes;
  const int64_t most = std::clamp<int64_t>(l2_bytes * 4 / 5 / head_bytes, 1, s.num_kv_heads);
  const int64_t head_tiles = (s.num_tokens / plan.rows + (int64_t{s.num_sequences} + 1) / 2) *
                             (s.num_heads / s.num_kv_heads);
  const auto parts = [](int64_t of, int64_t size) { return (of + size - 1) / size; };
  const int64_t wanted = std::min(most, parts(kTilesOfSm * gpu.num_sms, head_tiles));
  for (int64_t heads = wanted; heads <= most; ++heads) {
    if (s.num_kv_heads % heads == 0) return heads;
  }
  for (int64_t heads = wanted; heads * 4 >= wanted * 3; --heads) {
    if (s.num_kv_heads % heads == 0) return heads;
  }
  return parts(s.num_kv_heads, parts(s.num_kv_heads, wanted));
}

}  // namespace

Result<PrefillAttentionPlan> PlanPrefillAttention(const PrefillAttentionShape& shape,
                                                  const PrefillAttentionOptions& options,
                                                  const GpuLimits& gpu) {
  const auto& s = shape;
  if (s.num_sequences < 1 || s.num_tokens < 1 || s.max_kv_tokens < 1 || s.num_kv_heads < 1 ||
      s.num_heads < 1 || s.num_heads % s.num_kv_heads != 0) {
    return Err(Code::kInvalidArgument,
               "prefill attention: {} sequences, {} query tokens, {} keys, {} heads, {} kv heads: "
               "expected at least one of each, and query heads a multiple of kv heads",
               s.num_sequences, s.num_tokens, s.max_kv_tokens, s.num_heads, s.num_kv_heads);
  }
  if (s.page_tokens != 0 && s.page_tokens != 16 && s.page_tokens != 32 && s.page_tokens != 64 &&
      s.page_tokens != 128) {
    return Err(Code::kInvalidArgument,
               "prefill attention: page size {}: expected 16, 32, 64, 128, or 0 for contiguous "
               "keys and values; supported on this GPU: {}",
               s.page_tokens, SupportedOn(gpu, PrefillKernels()));
  }
  constexpr int64_t kMaxKeys = int64_t{1} << 40;
  const int64_t most_keys = int64_t{s.num_sequences} * s.max_kv_tokens;
  const int64_t total_keys =
      s.max_total_kv_tokens != 0 ? std::min(s.max_total_kv_tokens, most_keys) : most_keys;
  if (total_keys < s.max_kv_tokens || total_keys > kMaxKeys) {
    return Err(Code::kInvalidArgument,
               "prefill attention: {} sequences of up to {} keys, {} keys in all: expected at "
               "least those of one sequence and at most {}",
               s.num_sequences, s.max_kv_tokens, total_keys, kMaxKeys);
  }
  const bool sparse = s.window != std::numeric_limits<int32_t>::max();
  if (s.window < 0 || s.anchors < 0 || ((sparse || s.anchors != 0) && !s.causal)) {
    return Err(Code::kInvalidArgument,
               "prefill attention: window {}, {} anchors, {}: expected none below 0, and causal "
               "masking where they are used",
               s.window, s.anchors, s.causal ? "causal" : "full");
  }
  if (s.tile_lists && (sparse || s.anchors != 0)) {
    return Err(
        Code::kInvalidArgument,
        "prefill attention: tile lists and window {}, {} anchors: expected one of them, lists "
        "have windows of their own",
        s.window, s.anchors);
  }
  const AttentionKernel* chosen = nullptr;
  std::string refused;
  for (const AttentionKernel& kernel : PrefillKernels()) {
    std::string why;
    if (s.head_dim_qk != kernel.dim_qk || s.head_dim_v != kernel.dim_v) {
      why = fmt::format("head dims {}/{}", kernel.dim_qk, kernel.dim_v);
    } else if (s.dtype != kernel.dtype) {
      why = fmt::format("dtype {} only, not {}", NameOf(kernel.dtype), NameOf(s.dtype));
    } else if (options.portable && kernel.kind != KernelKind::kPortable) {
      why = "portable kernels asked for";
    } else if (s.tile_lists && !kernel.tile_lists) {
      why = "no tile lists";
    } else if (why = WhyNotOn(gpu, kernel); why.empty()) {
      chosen = &kernel;
      break;
    }
    refused += fmt::format("{}{} ({})", refused.empty() ? "" : "; ", kernel.family, why);
  }
  if (chosen == nullptr) {
    return Err(Code::kUnsupported,
               "prefill attention, head dims {}/{}, {}: no kernel. Refused: {}. Supported on this "
               "GPU: {}",
               s.head_dim_qk, s.head_dim_v, NameOf(s.dtype), refused,
               SupportedOn(gpu, PrefillKernels()));
  }

  PrefillAttentionPlan plan;
  plan.shape = shape;
  plan.kernel = *chosen;
  plan.rows = chosen->rows;
  const int64_t tiles = int64_t{s.num_tokens} / plan.rows + s.num_sequences;
  if (tiles * s.num_heads > std::numeric_limits<int32_t>::max()) {
    return Err(Code::kInvalidArgument,
               "prefill attention: {} query tokens x {} heads: expected at most {} tiles of {} "
               "rows",
               s.num_tokens, s.num_heads, std::numeric_limits<int32_t>::max(), plan.rows);
  }
  plan.max_tiles = static_cast<int32_t>(tiles);
  const int64_t head_bytes = total_keys * (s.head_dim_qk + s.head_dim_v) * 2;
  const int64_t kv_heads =
      options.tuning.l2_section_bytes > 0
          ? std::clamp<int64_t>(options.tuning.l2_section_bytes / head_bytes, 1, s.num_kv_heads)
          : SectionKvHeads(plan, head_bytes, gpu);
  plan.section_heads = static_cast<int32_t>(kv_heads) * (s.num_heads / s.num_kv_heads);
  plan.num_blocks = static_cast<int32_t>(std::min<int64_t>(gpu.num_sms, tiles * s.num_heads));
  plan.zeroed_bytes = kAlignment;
  plan.workspace_bytes =
      2 * kAlignment + Align(tiles * static_cast<int64_t>(sizeof(cuda::PrefillTile)));
  return plan;
}

std::string PrefillAttentionPlan::Describe() const {
  return fmt::format("tiles of {} rows, <= {} tiles x {} heads in sections of {}, {} blocks", rows,
                     max_tiles, shape.num_heads, section_heads, num_blocks);
}

void BindPrefillWorkspace(const PrefillAttentionPlan& plan, void* workspace,
                          cuda::PrefillParams* params) {
  auto* base = static_cast<char*>(workspace);
  params->causal = plan.shape.causal;
  params->window = plan.shape.window;
  params->anchors = plan.shape.anchors;
  params->portable = plan.kernel.kind == KernelKind::kPortable;
  params->float16 = plan.shape.dtype == DType::kF16;
  params->max_tiles = plan.max_tiles;
  params->num_sequences = plan.shape.num_sequences;
  params->num_heads = plan.shape.num_heads;
  params->num_kv_heads = plan.shape.num_kv_heads;
  params->num_blocks = plan.num_blocks;
  params->section_heads = plan.section_heads;
  params->next = reinterpret_cast<int32_t*>(base);
  params->num_tiles = reinterpret_cast<int32_t*>(base + kAlignment);
  params->tiles = reinterpret_cast<cuda::PrefillTile*>(base + 2 * kAlignment);
}

Status CheckPrefillParams(const PrefillAttentionPlan& plan, const cuda::PrefillParams& params) {
  const auto require = [](const char* name, const void* pointer, uintptr_t alignment) -> Status {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
      return Err(Code::kInvalidArgument,
                 "prefill attention: {} is {}: expected a {}-byte aligned device pointer", name,
                 pointer, alignment);
    }
    return {};
  };
  FATHOM_TRY(require("q", params.q, 16));
  FATHOM_TRY(require("k", params.k.base, 16));
  FATHOM_TRY(require("v", params.v.base, 16));
  FATHOM_TRY(require("out", params.out, 16));
  FATHOM_TRY(require("kv_lengths", params.kv_lengths, 4));
  FATHOM_TRY(require("query_starts", params.query_starts, 4));
  FATHOM_TRY(require("workspace", params.next, kAlignment));
  for (const int64_t stride : {params.q_token_stride, params.q_head_stride, params.out_token_stride,
                               params.out_head_stride}) {
    if (stride <= 0 || stride % 8 != 0 || stride >= int64_t{1} << 39) {
      return Err(Code::kInvalidArgument,
                 "prefill attention: query or output stride of {} elements: expected a positive "
                 "multiple of 8 (16 bytes) below 2^39",
                 stride);
    }
  }
  const bool pe = params.k_pe.base != nullptr;
  if (pe) {
    FATHOM_TRY(require("k_pe", params.k_pe.base, 16));
    if (plan.shape.head_dim_qk == plan.shape.head_dim_v) {
      return Err(
          Code::kInvalidArgument,
          "prefill attention: a plane of rotated keys with head dims {}/{}: expected 192/128",
          plan.shape.head_dim_qk, plan.shape.head_dim_v);
    }
  }
  for (const cuda::PagedPlane& plane : {params.k, params.v, pe ? params.k_pe : params.k}) {
    for (const int64_t stride :
         {plane.page_stride_bytes, plane.token_stride_bytes, plane.head_stride_bytes}) {
      if (stride <= 0 || stride % 16 != 0 || stride >= int64_t{1} << 40) {
        return Err(Code::kInvalidArgument,
                   "prefill attention: key or value stride of {} bytes: expected a positive "
                   "multiple of 16 below 2^40",
                   stride);
      }
    }
  }
  if (plan.shape.tile_lists != (params.lists != nullptr)) {
    return Err(Code::kInvalidArgument, "prefill attention: tile lists are {}, the plan is for {}",
               params.lists != nullptr ? "given" : "missing",
               plan.shape.tile_lists ? "lists" : "all tiles");
  }
  if (plan.shape.tile_lists) {
    FATHOM_TRY(require("tile lists", params.lists, 16));
    FATHOM_TRY(require("num_lists", params.num_lists, 4));
    FATHOM_TRY(require("listed tiles", params.listed, 8));
    FATHOM_TRY(require("masks", params.masks, 16));
  }
  if (params.num_tokens < 1 || params.num_tokens > plan.shape.num_tokens) {
    return Err(Code::kInvalidArgument, "prefill attention: {} query tokens: expected 1 to {}",
               params.num_tokens, plan.shape.num_tokens);
  }
  if (plan.shape.page_tokens == 0) {
    FATHOM_TRY(require("kv_starts", params.kv_starts, 4));
    if (params.page_table != nullptr || params.num_pages != 1 || params.page_tokens < 1) {
      return Err(Code::kInvalidArgument,
                 "prefill attention: the plan is for contiguous keys: expected no page table and "
                 "one page of all rows, found {} pages of {}",
                 params.num_pages, params.page_tokens);
    }
  } else {
    FATHOM_TRY(require("page_table", params.page_table, 4));
    const int64_t entries =
        (int64_t{plan.shape.max_kv_tokens} + params.page_tokens - 1) / plan.shape.page_tokens;
    if (params.page_tokens != plan.shape.page_tokens || params.page_table_stride < entries) {
      return Err(Code::kInvalidArgument,
                 "prefill attention: pages of {} tokens, table rows of {} entries: the plan is for "
                 "pages of {} and needs {} entries",
                 params.page_tokens, params.page_table_stride, plan.shape.page_tokens, entries);
    }
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale)) {
    return Err(Code::kInvalidArgument, "prefill attention: scale {}: expected a positive number",
               params.scale);
  }
  return {};
}

}  // namespace fathom::ops
