#include "ops/kv_cache.h"

#include <array>
#include <cstring>

#include "ops/host.h"

namespace fathom::ops::kv_cache {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

// What a token's rotation and page need, looked up once a token.
struct TokenPlace {
  const float* cosine = nullptr;  // [rope_dim / 2]; null: no rotation
  const float* sine = nullptr;
  std::byte* page = nullptr;
  int64_t offset = 0;  // token in its page
};

struct Places {
  StepInputs inputs;
  const float* const* tables;
  int32_t rope_dim;
  const int32_t* page_table;
  int64_t page_table_stride;
  std::byte* pages;  // of the layer
  int64_t num_pages;
  int32_t page_tokens;
  int64_t page_bytes;

  TokenPlace Of(int64_t token) const {
    const int32_t sequence = host::SequenceOf(
        inputs.query_starts, inputs.live_counts[kLiveSequences], static_cast<int32_t>(token));
    const int64_t position = inputs.positions[token];
    TokenPlace place;
    if (tables != nullptr) {
      const float* row = tables[inputs.rope_rows[sequence]] + position * rope_dim;
      place.cosine = row;
      place.sine = row + rope_dim / 2;
    }
    const int32_t page = page_table[sequence * page_table_stride + position / page_tokens];
    FATHOM_CHECK(page >= 0 && page < num_pages, "token at position {} is on page {} of {}",
                 position, page, num_pages);
    place.page = pages + page * page_bytes;
    place.offset = position % page_tokens;
    return place;
  }
};

Result<Places> MakePlaces(const StepInputs& inputs, const RopeTables* tables,
                          const CacheView& cache, int32_t layer, int32_t page_table) {
  const RopeState state = cache.format.rope;
  if (state == RopeState::kRaw) {
    return Err(Code::kUnsupported,
               "a cache of raw keys: the CPU writes keys rotated (interleaved or halves) or those "
               "of a model without RoPE");
  }
  FATHOM_CHECK((state == RopeState::kNone) == (tables == nullptr),
               "RoPE tables and the cache's rope state must agree");
  Places places;
  places.inputs = inputs;
  places.tables = tables != nullptr ? tables->data() : nullptr;
  places.rope_dim = tables != nullptr ? tables->dim() : 0;
  places.page_table = inputs.page_tables[static_cast<size_t>(page_table)];
  places.page_table_stride = inputs.page_table_stride[static_cast<size_t>(page_table)];
  places.pages = static_cast<std::byte*>(cache.Layer(layer));
  places.num_pages = cache.num_pages;
  places.page_tokens = cache.format.page_tokens;
  places.page_bytes = cache.format.page_bytes;
  return places;
}

kernels::RopeStyle StyleOf(RopeState state) {
  return state == RopeState::kRotatedInterleaved ? kernels::RopeStyle::kInterleaved
                                                 : kernels::RopeStyle::kHalves;
}

void Store(const kernels::cpu::KernelTable& cpu, const float* values, const Plane& plane,
           const TokenPlace& place, int64_t head) {
  std::byte* out = place.page + plane.offset_bytes + place.offset * plane.token_stride_bytes +
                   head * plane.head_stride_bytes;
  if (plane.dtype == DType::kBF16) {
    cpu.round_row(values, reinterpret_cast<uint16_t*>(out), plane.dim);
  } else {
    std::memcpy(out, values, static_cast<size_t>(plane.dim) * sizeof(float));
  }
}

Status CheckPlane(const Plane* plane, int64_t heads, int64_t dim, const char* what) {
  FATHOM_CHECK(plane != nullptr && plane->num_heads == heads && plane->dim == dim,
               "{}: the cache format has no plane of {} heads x {}", what, heads, dim);
  if (plane->dtype != DType::kBF16 && plane->dtype != DType::kF32) {
    return Err(Code::kUnsupported, "{} as {}: the CPU caches BF16 or F32", what,
               NameOf(plane->dtype));
  }
  if (dim > kMaxHeadDim) {
    return Err(Code::kUnsupported, "{} of {} elements: at most {}", what, dim, kMaxHeadDim);
  }
  return {};
}

}  // namespace

Status WriteGqa(const GqaArgs& args, const StepInputs& inputs, Context& context) {
  const int64_t heads = args.q.shape[1];
  const int64_t kv_heads = args.k.shape[1];
  const int64_t dim = args.k.shape[2];
  host::CheckHeads(args.q, heads, dim, "q");
  host::CheckHeads(args.k, kv_heads, dim, "k");
  host::CheckHeads(args.v, kv_heads, args.v.shape[2], "v");
  const Plane* k_plane = args.cache.format.Find(PlaneKind::kK);
  const Plane* v_plane = args.cache.format.Find(PlaneKind::kV);
  FATHOM_TRY(CheckPlane(k_plane, kv_heads, dim, "keys"));
  FATHOM_TRY(CheckPlane(v_plane, kv_heads, args.v.shape[2], "values"));
  FATHOM_ASSIGN_OR_RETURN(const Places places,
                          MakePlaces(inputs, args.tables, args.cache, args.layer, args.page_table));
  FATHOM_CHECK(places.rope_dim <= dim);
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, places,
                                          k_plane = *k_plane, v_plane = *v_plane, heads, kv_heads,
                                          dim] {
    const kernels::RopeStyle style = StyleOf(args.cache.format.rope);
    const int64_t tokens = host::LiveRows(places.inputs.live_counts + kLiveTokens, args.q.shape[0]);
    host::ForRows(runtime, tokens, (heads + 2 * kv_heads) * dim * 6, [&](int64_t token) {
      const TokenPlace place = places.Of(token);
      if (place.cosine != nullptr) {
        for (int64_t head = 0; head < heads; ++head) {
          float* q = host::Row(args.q, token) + head * args.q.stride[1];
          runtime.cpu->rope({q, place.cosine, place.sine, q, places.rope_dim, style});
        }
      }
      std::array<float, kMaxHeadDim> rotated;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const float* k = host::Row(args.k, token) + head * args.k.stride[1];
        if (place.cosine != nullptr) {
          runtime.cpu->rope({k, place.cosine, place.sine, rotated.data(), places.rope_dim, style});
          std::copy(k + places.rope_dim, k + dim, rotated.data() + places.rope_dim);
          k = rotated.data();
        }
        Store(*runtime.cpu, k, k_plane, place, head);
        Store(*runtime.cpu, host::Row(args.v, token) + head * args.v.stride[1], v_plane, place,
              head);
      }
    });
  });
  return {};
}

Status WriteMla(const MlaArgs& args, const StepInputs& inputs, Context& context) {
  const Plane* c_plane = args.cache.format.Find(PlaneKind::kC);
  const Plane* pe_plane = args.cache.format.Find(PlaneKind::kKPe);
  FATHOM_CHECK(c_plane != nullptr && pe_plane != nullptr, "not the cache of an MLA model");
  const int64_t rank = c_plane->dim;
  const int64_t rope_dim = pe_plane->dim;
  const int64_t heads = args.q.shape[1];
  const int64_t q_dim = args.q.shape[2];
  host::CheckHeads(args.q, heads, q_dim, "q");
  host::CheckMatrix(args.kv_a, rank + rope_dim, "kv_a");
  FATHOM_TRY(CheckPlane(c_plane, 1, rank, "latents"));
  FATHOM_TRY(CheckPlane(pe_plane, 1, rope_dim, "shared keys"));
  FATHOM_ASSIGN_OR_RETURN(const Places places,
                          MakePlaces(inputs, args.tables, args.cache, args.layer, args.page_table));
  FATHOM_CHECK(places.rope_dim == (args.tables != nullptr ? rope_dim : 0) && rope_dim <= q_dim);
  context.device.Execute(context.stream, [runtime = host::Runtime(context), args, places,
                                          c_plane = *c_plane, pe_plane = *pe_plane, heads, q_dim,
                                          rank, rope_dim] {
    const kernels::RopeStyle style = StyleOf(args.cache.format.rope);
    const auto dim = static_cast<int32_t>(rope_dim);
    const int64_t tokens = host::LiveRows(places.inputs.live_counts + kLiveTokens, args.q.shape[0]);
    host::ForRows(runtime, tokens, (heads * rope_dim + rank) * 8, [&](int64_t token) {
      const TokenPlace place = places.Of(token);
      if (place.cosine != nullptr) {
        for (int64_t head = 0; head < heads; ++head) {
          float* q = host::Row(args.q, token) + head * args.q.stride[1] + q_dim - rope_dim;
          runtime.cpu->rope({q, place.cosine, place.sine, q, dim, style});
        }
      }
      std::array<float, kMaxHeadDim> row;
      float* c = host::Row(args.kv_a, token);
      runtime.cpu->rms_norm({c, nullptr, args.norm_weight, row.data(), rank, args.eps});
      Store(*runtime.cpu, row.data(), c_plane, place, 0);
      const float* pe = c + rank;
      if (place.cosine != nullptr) {
        runtime.cpu->rope({pe, place.cosine, place.sine, row.data(), dim, style});
        pe = row.data();
      }
      Store(*runtime.cpu, pe, pe_plane, place, 0);
    });
  });
  return {};
}

}  // namespace fathom::ops::kv_cache
