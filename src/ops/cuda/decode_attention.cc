#include "ops/cuda/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/sm90/decode/config.h"

namespace fathom::ops {
namespace {

namespace cuda = kernels::cuda;
using cuda::CacheCode;

constexpr int kSpanTokens = 256;
// An even share of the tiles, from which on
constexpr int kTwoPartTiles = 12;     // an SM may have two parts of latents,
constexpr int kNoIdlePartTiles = 12;  // parts that may find no work are not planned.
constexpr int64_t kAlignment = 256;   // of each array in the workspace

int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Blocks that work on the same part: a tile list has its own kv head.
int32_t Groups(const DecodeAttentionPlan& plan) {
  return (plan.shape.tile_lists ? 1 : plan.shape.num_kv_heads) * plan.row_tiles;
}

struct Layout {
  int64_t parts, part_pages, merges, prefix, arrivals, partial_ml, partial_out, total;
};

Layout LayOut(const DecodeAttentionPlan& plan) {
  const auto& shape = plan.shape;
  const int64_t partial_rows = int64_t{plan.num_slots} * Groups(plan) * plan.rows;
  Layout layout{};
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t start = at;
    at += Align(bytes);
    return start;
  };
  layout.parts = take(plan.num_parts * static_cast<int64_t>(sizeof(cuda::DecodePart)));
  layout.part_pages = take(int64_t{plan.num_parts} * cuda::kDecodePartPages * 4);
  layout.merges = take(plan.line_size * static_cast<int64_t>(sizeof(cuda::DecodeMerge)));
  layout.prefix = take(2 * (int64_t{plan.line_size} + 1) * 4);
  layout.arrivals = take(plan.merge_inside ? int64_t{plan.line_size} * plan.row_tiles * 4 : 0);
  layout.partial_ml = take(partial_rows * 8);
  layout.partial_out = take(partial_rows * shape.head_dim_v * plan.PartialElementBytes());
  layout.total = at;
  return layout;
}

constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();

// What the schedule's line of tiles is made of: sequences, or tile lists.
int64_t LineSize(const DecodeAttentionShape& s) {
  if (!s.tile_lists) return s.num_sequences;
  return s.max_lists > 0 ? s.max_lists : int64_t{s.num_sequences} * s.num_kv_heads;
}

Status CheckShape(const DecodeAttentionShape& s, const GpuLimits& gpu) {
  const auto supported = [&gpu] {
    return fmt::format(
        "supported on this GPU: {}; pages of 16, 32, 64 or 128 tokens; 1 to 8 query tokens a "
        "sequence",
        SupportedOn(gpu, DecodeKernels()));
  };
  if (s.num_sequences < 1 || s.num_kv_heads < 1 || s.num_heads < 1 ||
      s.num_heads % s.num_kv_heads != 0) {
    return Err(Code::kInvalidArgument,
               "decode attention: {} sequences, {} heads, {} kv heads: expected at least one of "
               "each, and query heads a multiple of kv heads",
               s.num_sequences, s.num_heads, s.num_kv_heads);
  }
  if (s.max_query_tokens < 1 || s.max_query_tokens > 8) {
    return Err(Code::kInvalidArgument,
               "decode attention: {} query tokens a sequence: expected 1 to 8; more take the "
               "prefill path; {}",
               s.max_query_tokens, supported());
  }
  if (s.page_tokens != 16 && s.page_tokens != 32 && s.page_tokens != 64 && s.page_tokens != 128) {
    return Err(Code::kInvalidArgument,
               "decode attention: page size {}: expected 16, 32, 64 or 128; {}", s.page_tokens,
               supported());
  }
  if (s.max_lists < 0 || (s.max_lists > 0 && !s.tile_lists)) {
    return Err(Code::kInvalidArgument,
               "decode attention: at most {} tile lists for a cache read {}: expected a positive "
               "number, or 0 where there are none or one for each sequence and kv head",
               s.max_lists, s.tile_lists ? "by lists" : "whole");
  }
  // Tiles of a whole batch are counted in 32 bits.
  const int64_t line = LineSize(s);
  if (s.max_kv_tokens < 1 || s.max_kv_tokens * line > kMax32 * 16) {
    return Err(Code::kInvalidArgument,
               "decode attention: {} {} of up to {} keys: expected at least 1 and at most {} keys "
               "in all",
               line, s.tile_lists ? "tile lists" : "sequences", s.max_kv_tokens, kMax32 * 16);
  }
  // So are the blocks of the merge, one for each row and 64 output columns, and a row's token is
  // found by a 20-bit reciprocal of the group.
  const int64_t heads = s.tile_lists ? s.num_heads / s.num_kv_heads : s.num_heads;
  const int64_t rows = line * s.max_query_tokens * heads;
  const int64_t columns = std::max(1, s.head_dim_v / 64);
  const int64_t max_rows = kMax32 / 2 / columns;
  if (rows > max_rows) {
    return Err(Code::kInvalidArgument,
               "decode attention: {} {} x {} query tokens x {} heads are {} rows: expected at most "
               "{}",
               line, s.tile_lists ? "tile lists" : "sequences", s.max_query_tokens, heads, rows,
               max_rows);
  }
  const int64_t group = s.num_heads / s.num_kv_heads;
  if (s.max_query_tokens * group * group >= int64_t{1} << cuda::kGroupInverseShift) {
    return Err(Code::kInvalidArgument,
               "decode attention: {} query tokens x {} query heads a kv head: expected query "
               "tokens x heads^2 below {}",
               s.max_query_tokens, group, int64_t{1} << cuda::kGroupInverseShift);
  }
  return {};
}

// Why a kernel is not for this cache or was not asked for; empty when it may be taken.
std::string WhyNotAsked(const DecodeAttentionShape& shape, const DecodeAttentionOptions& options,
                        const AttentionKernel& kernel) {
  const bool quantised = shape.code != CacheCode::kBf16;
  if (quantised != kernel.quantised) {
    return kernel.quantised ? "int8 or e4m3 cache only" : "no quantised cache";
  }
  if (shape.tile_lists && !kernel.tile_lists) return "no tile lists";
  if (shape.tile_lists && shape.page_tokens < cuda::kDecodeTileTokens) {
    return fmt::format("tile lists need pages of 64 or 128 tokens, not {}", shape.page_tokens);
  }
  const bool portable = kernel.kind == KernelKind::kPortable;
  if (options.portable && !portable) return "portable kernels asked for";
  const bool warps = kernel.kind == KernelKind::kWarps || portable;
  if ((options.kernel == DecodeKernel::kWarps && !warps) ||
      (options.kernel == DecodeKernel::kWarpgroups && warps)) {
    return "another kind of kernel was asked for";
  }
  return {};
}

// The instantiations of the family that fits: one after the other, by rows.
Result<std::span<const AttentionKernel>> ChooseFamily(const DecodeAttentionShape& shape,
                                                      const DecodeAttentionOptions& options,
                                                      const GpuLimits& gpu) {
  const std::span<const AttentionKernel> kernels = DecodeKernels();
  std::string refused;
  for (size_t first = 0, next = 0; first < kernels.size(); first = next) {
    while (next < kernels.size() && kernels[next].family == kernels[first].family) ++next;
    const AttentionKernel& widest = kernels[next - 1];
    std::string why;
    if (shape.head_dim_qk != widest.dim_qk || shape.head_dim_v != widest.dim_v) {
      why = fmt::format("head dims {}/{}", widest.dim_qk, widest.dim_v);
    } else if (shape.dtype != widest.dtype) {
      why = fmt::format("dtype {} only, not {}", NameOf(widest.dtype), NameOf(shape.dtype));
    } else {
      why = WhyNotAsked(shape, options, widest);
      if (why.empty()) why = WhyNotOn(gpu, widest);
      if (why.empty() && widest.latent() && shape.num_kv_heads != 1) {
        why = fmt::format("latent cache has 1 kv head, not {}", shape.num_kv_heads);
      }
      if (why.empty()) return kernels.subspan(first, next - first);
    }
    refused += fmt::format("{}{} ({})", refused.empty() ? "" : "; ", widest.family, why);
  }
  return Err(Code::kUnsupported,
             "decode attention, head dims {}/{}, {}: no kernel. Refused: {}. Supported on this "
             "GPU: {}",
             shape.head_dim_qk, shape.head_dim_v, NameOf(shape.dtype), refused,
             SupportedOn(gpu, kernels));
}

// Long walks over keys are up to 4 % faster by warps that work alone; short ones are over before
// that pays for merging four states. Bits that may not depend on the batch may not depend on this
// either.
bool PrefersWarps(const DecodeAttentionShape& shape, const DecodeAttentionOptions& options,
                  const GpuLimits& gpu) {
  constexpr int kTilesOfSm = 16;
  constexpr int kMostRows = 16;
  if (options.kernel != DecodeKernel::kAuto || options.portable ||
      options.reduction != Reduction::kBalanced || options.tuning.rows != 0 || shape.tile_lists ||
      shape.head_dim_qk != shape.head_dim_v ||
      shape.max_query_tokens * (shape.num_heads / shape.num_kv_heads) > kMostRows) {
    return false;
  }
  return int64_t{cuda::DecodeTiles(shape.max_kv_tokens)} * shape.num_sequences *
             shape.num_kv_heads >=
         int64_t{kTilesOfSm} * gpu.num_sms;
}

// The instantiation for `rows` query rows of a kv head: the narrowest that holds them, else the
// widest, or the one that the tuning asks for.
Result<AttentionKernel> ChooseKernel(std::span<const AttentionKernel> family, int rows,
                                     int tuned_rows) {
  std::string known;
  for (const AttentionKernel& kernel : family) {
    if (tuned_rows == 0 ? rows <= kernel.rows || &kernel == &family.back()
                        : kernel.rows == tuned_rows) {
      return kernel;
    }
    known += fmt::format(" {}", kernel.rows);
  }
  return Err(Code::kInvalidArgument, "decode attention: tuned for {} rows: {} has{}", tuned_rows,
             family[0].family, known);
}

}  // namespace

Result<DecodeAttentionPlan> PlanDecodeAttention(const DecodeAttentionShape& shape,
                                                const DecodeAttentionOptions& options,
                                                const GpuLimits& gpu) {
  FATHOM_TRY(CheckShape(shape, gpu));
  DecodeAttentionOptions asked = options;
  if (PrefersWarps(shape, options, gpu)) asked.kernel = DecodeKernel::kWarps;
  auto chosen = ChooseFamily(shape, asked, gpu);
  if (!chosen) chosen = ChooseFamily(shape, options, gpu);
  FATHOM_ASSIGN_OR_RETURN(const std::span<const AttentionKernel> family, std::move(chosen));
  if (shape.tile_lists && options.reduction == Reduction::kSpans) {
    return Err(Code::kUnsupported,
               "decode attention: spans with tile lists: spans are counted from position 0, lists "
               "leave positions out; expected the balanced or the batch-invariant reduction");
  }
  const DecodeTuning& tuning = options.tuning;
  const int rows = shape.max_query_tokens * (shape.num_heads / shape.num_kv_heads);

  DecodeAttentionPlan plan;
  plan.shape = shape;
  FATHOM_ASSIGN_OR_RETURN(plan.kernel, ChooseKernel(family, rows, tuning.rows));
  // An SM has 1 KiB more than a block may have, and gives each block 1 KiB more than it asks for.
  constexpr int64_t kReserved = 1024;
  plan.kernel.blocks_per_sm = static_cast<int>(std::min<int64_t>(
      plan.kernel.blocks_per_sm,
      (gpu.shared_bytes_per_block + kReserved) / (plan.kernel.shared_bytes + kReserved)));
  plan.rows = plan.kernel.rows;
  plan.row_tiles = (rows + plan.rows - 1) / plan.rows;
  plan.line_size = static_cast<int32_t>(LineSize(shape));
  const int groups = Groups(plan);
  int per_sm = tuning.parts_per_sm != 0 ? tuning.parts_per_sm : plan.kernel.blocks_per_sm;
  const int max_tiles = cuda::DecodeTiles(shape.max_kv_tokens);
  if (tuning.parts_per_sm == 0 && plan.kernel.latent() &&
      int64_t{max_tiles} * shape.num_sequences * groups <
          int64_t{kTwoPartTiles} * gpu.num_sms * per_sm) {
    per_sm = 1;  // shorter parts cost more in partial results than a second block hides
  }
  plan.num_parts = std::max(1, gpu.num_sms * per_sm / groups);
  if (!shape.tile_lists && plan.kernel.kind != KernelKind::kPortable &&
      int64_t{max_tiles} * shape.num_sequences >= int64_t{kNoIdlePartTiles} * plan.num_parts) {
    // Blocks that find no work make the others' reading up to 2 % slower: a few that sequences of
    // equal lengths would leave without are not planned.
    const int used = cuda::DecodeUsedParts(max_tiles * shape.num_sequences, shape.num_sequences,
                                           /*equal_lengths=*/true, plan.num_parts);
    if (used >= plan.num_parts - plan.num_parts / 16) plan.num_parts = used;
  }

  switch (options.reduction) {
    case Reduction::kBalanced:
      plan.split = {.min_segment_tiles = 1, .max_segments = 0};
      break;
    case Reduction::kBatchInvariant:
      // As many segments as one sequence needs to fill the GPU alone; latent partials are large, so
      // their segments may not be short.
      plan.split = {.min_segment_tiles = tuning.min_segment_tokens / cuda::kDecodeTileTokens,
                    .max_segments = tuning.max_segments != 0 ? tuning.max_segments
                                                             : 32 * std::max(1, 8 / groups)};
      break;
    case Reduction::kSpans:
      plan.split = {.min_segment_tiles = kSpanTokens / cuda::kDecodeTileTokens,
                    .max_segments = std::numeric_limits<int32_t>::max()};
      break;
  }
  plan.num_slots = plan.split.max_segments == 0
                       ? plan.num_parts + plan.line_size
                       : plan.line_size * std::min(plan.split.max_segments,
                                                   max_tiles / plan.split.min_segment_tiles + 1);

  // A warp sums few partial results of a row faster than a block can start.
  const int partials = plan.split.max_segments == 0 ? plan.num_parts / plan.line_size + 1
                                                    : plan.num_slots / plan.line_size;
  plan.merge_by_block = partials > tuning.warp_merge_partials;
  // Where all blocks can run at the same time they merge themselves: no second kernel has to start.
  plan.merge_inside = plan.kernel.latent() && plan.kernel.kind != KernelKind::kPortable &&
                      plan.split.max_segments == 0 && plan.kernel.blocks_per_sm == 1 &&
                      plan.num_parts * groups <= gpu.num_sms;

  plan.workspace_bytes = LayOut(plan).total;
  return plan;
}

int DecodeAttentionPlan::PartialElementBytes() const {
  using cuda::sm90::PartialFormat;
  const int architecture = kernel.kind == KernelKind::kPortable ? 80 : 90;
  const PartialFormat format = cuda::sm90::PartialFormatOf(shape.head_dim_v, rows, architecture);
  return format == PartialFormat::kFloat32 ? 4 : 2;
}

std::string DecodeAttentionPlan::Describe() const {
  return fmt::format(
      "{} rows x {} row tiles, {} parts x {}, {} slots, segments {}, merge {}, workspace {} bytes",
      rows, row_tiles, num_parts,
      shape.tile_lists ? fmt::format("{} tile lists", line_size)
                       : fmt::format("{} kv heads", shape.num_kv_heads),
      num_slots,
      split.max_segments == 0
          ? std::string("balanced")
          : fmt::format("of >= {} tokens, <= {}", split.min_segment_tiles * cuda::kDecodeTileTokens,
                        split.max_segments),
      merge_inside     ? "inside"
      : merge_by_block ? "by blocks"
                       : "by warps",
      workspace_bytes);
}

void BindDecodeWorkspace(const DecodeAttentionPlan& plan, void* workspace,
                         cuda::DecodeParams* params) {
  const Layout layout = LayOut(plan);
  auto* base = static_cast<char*>(workspace);
  params->num_sequences = plan.shape.num_sequences;
  params->num_kv_heads = plan.shape.num_kv_heads;
  params->group = plan.shape.num_heads / plan.shape.num_kv_heads;
  params->group_inverse = ((1 << cuda::kGroupInverseShift) + params->group - 1) / params->group;
  params->max_query_tokens = plan.shape.max_query_tokens;
  params->page_tokens = plan.shape.page_tokens;
  params->code = plan.shape.code;
  params->float16 = plan.shape.dtype == DType::kF16;
  params->portable = plan.kernel.kind == KernelKind::kPortable;
  params->free_warps = plan.kernel.kind == KernelKind::kWarps;
  params->split = plan.split;
  params->num_parts = plan.num_parts;
  params->row_tiles = plan.row_tiles;
  params->merge_by_block = plan.merge_by_block;
  params->merge_inside = plan.merge_inside;
  params->arrivals = reinterpret_cast<uint32_t*>(base + layout.arrivals);
  params->parts = reinterpret_cast<cuda::DecodePart*>(base + layout.parts);
  params->part_pages = reinterpret_cast<int32_t*>(base + layout.part_pages);
  params->merges = reinterpret_cast<cuda::DecodeMerge*>(base + layout.merges);
  params->prefix = reinterpret_cast<int32_t*>(base + layout.prefix);
  params->partial_ml = reinterpret_cast<float*>(base + layout.partial_ml);
  params->partial_out = base + layout.partial_out;
}

Status CheckDecodeParams(const DecodeAttentionPlan& plan, const cuda::DecodeParams& params) {
  const bool latent = plan.shape.head_dim_qk > plan.shape.head_dim_v;
  const auto require = [](const char* name, const void* pointer, uintptr_t alignment) -> Status {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
      return Err(Code::kInvalidArgument,
                 "decode attention: {} is {}: expected a {}-byte aligned "
                 "device pointer",
                 name, pointer, alignment);
    }
    return {};
  };
  FATHOM_TRY(require("q", params.q, 16));
  if (latent) FATHOM_TRY(require("q_pe", params.q_pe, 16));
  const int out_elements = plan.kernel.kind == KernelKind::kWide ? 8 : 4;  // stored at a time
  FATHOM_TRY(require("out", params.out, static_cast<uintptr_t>(out_elements) * 2));
  FATHOM_TRY(require("page_table", params.page_table, 4));
  FATHOM_TRY(require("kv_lengths", params.kv_lengths, 4));
  FATHOM_TRY(require("query_starts", params.query_starts, 4));
  FATHOM_TRY(require("workspace", params.parts, kAlignment));
  FATHOM_TRY(require("plane 0", params.plane[0].base, 16));
  FATHOM_TRY(require("plane 1", params.plane[1].base, 16));
  for (const cuda::PagedPlane& plane : params.plane) {
    for (const int64_t stride :
         {plane.page_stride_bytes, plane.token_stride_bytes, plane.head_stride_bytes}) {
      if (stride <= 0 || stride % 16 != 0 || stride >= int64_t{1} << 40) {
        return Err(Code::kInvalidArgument,
                   "decode attention: cache stride of {} bytes: expected a positive multiple of 16 "
                   "below 2^40",
                   stride);
      }
    }
  }
  if (plan.shape.code != CacheCode::kBf16 && latent) {
    // One copy brings a token's codes, scales and rotated key: they lie behind each other.
    const cuda::PagedPlane& codes = params.plane[0];
    const int64_t scales_at = plan.shape.head_dim_v;
    const int64_t rope_at = scales_at + scales_at / cuda::kLatentScaleGroup * 4;
    const auto behind_codes = [&codes](const char* name, const cuda::PagedPlane& plane,
                                       int64_t at) -> Status {
      const int64_t found =
          static_cast<const char*>(plane.base) - static_cast<const char*>(codes.base);
      if (found != at || plane.token_stride_bytes != codes.token_stride_bytes ||
          plane.page_stride_bytes != codes.page_stride_bytes) {
        return Err(Code::kInvalidArgument,
                   "decode attention: {} {} bytes behind the latent codes, strides of {} (token) "
                   "and {} (page) bytes: expected {} bytes behind them, with their strides, {} and "
                   "{}",
                   name, found, plane.token_stride_bytes, plane.page_stride_bytes, at,
                   codes.token_stride_bytes, codes.page_stride_bytes);
      }
      return {};
    };
    FATHOM_TRY(behind_codes("scales", params.scales[0], scales_at));
    FATHOM_TRY(behind_codes("rotated keys", params.plane[1], rope_at));
  } else if (plan.shape.code != CacheCode::kBf16) {
    for (const cuda::PagedPlane& plane : params.scales) {
      FATHOM_TRY(require("scales", plane.base, 16));
      if (plane.token_stride_bytes != 4 || plane.head_stride_bytes % 16 != 0 ||
          plane.page_stride_bytes % 16 != 0 || plane.head_stride_bytes <= 0 ||
          plane.page_stride_bytes <= 0) {
        return Err(Code::kInvalidArgument,
                   "decode attention: scales with strides of {} (token), {} (head) and {} (page) "
                   "bytes: expected 4, and positive multiples of 16",
                   plane.token_stride_bytes, plane.head_stride_bytes, plane.page_stride_bytes);
      }
    }
  }
  for (const int64_t stride : {params.q_token_stride, params.q_head_stride,
                               params.q_pe_token_stride, params.q_pe_head_stride}) {
    if (stride % 8 != 0) {
      return Err(Code::kInvalidArgument,
                 "decode attention: query stride of {} elements: expected a multiple of 8 (16 "
                 "bytes)",
                 stride);
    }
  }
  if (params.out_token_stride % out_elements != 0 || params.out_head_stride % out_elements != 0) {
    return Err(Code::kInvalidArgument,
               "decode attention: output strides {} and {}: expected multiples of {} elements",
               params.out_token_stride, params.out_head_stride, out_elements);
  }
  if (params.num_pages < 1 || params.num_pages >= std::numeric_limits<int32_t>::max()) {
    return Err(Code::kInvalidArgument, "decode attention: {} pages: expected 1 to {}",
               params.num_pages, std::numeric_limits<int32_t>::max() - 1);
  }
  if (plan.shape.tile_lists != (params.lists != nullptr)) {
    return Err(Code::kInvalidArgument,
               "decode attention: tile lists are {}, the plan is for a cache read {}",
               params.lists != nullptr ? "given" : "missing",
               plan.shape.tile_lists ? "by lists" : "whole");
  }
  if (plan.shape.tile_lists) {
    FATHOM_TRY(require("tile lists", params.lists, 16));
    FATHOM_TRY(require("visited_tokens", params.visited_tokens, 4));
    FATHOM_TRY(require("listed tiles", params.listed, 8));
    FATHOM_TRY(require("masks", params.masks, 8));
    if (params.num_lists < 1 || params.num_lists > plan.line_size) {
      return Err(Code::kInvalidArgument, "decode attention: {} tile lists: expected 1 to {}",
                 params.num_lists, plan.line_size);
    }
  }
  const int64_t table_entries =
      (int64_t{plan.shape.max_kv_tokens} + plan.shape.page_tokens - 1) / plan.shape.page_tokens;
  if (!plan.shape.tile_lists && params.page_table_stride < table_entries) {
    return Err(Code::kInvalidArgument,
               "decode attention: page table rows of {} entries: {} keys in pages of {} need {}",
               params.page_table_stride, plan.shape.max_kv_tokens, plan.shape.page_tokens,
               table_entries);
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale)) {
    return Err(Code::kInvalidArgument, "decode attention: scale {}: expected a positive number",
               params.scale);
  }
  return {};
}

}  // namespace fathom::ops
