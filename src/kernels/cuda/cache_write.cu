// Rotation, RMS norm, quantisation and the write into pages, in one pass over a step's rows.
//
// A warp stays with one token: it finds the token's page and its row of the rotation table once,
// then takes as many rows at a time as 32 lanes hold at two chunks of eight elements a lane, with
// the next rows on their way. The two chunks of a lane are those that a rotation by halves pairs,
// so nothing is exchanged between lanes but sums and maxima.
#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/launch_kernel.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kChunk = 8;   // elements
constexpr int kChunks = 2;  // a lane's

// How the rows of one CacheRows lie over a warp.
struct RowLanes {
  int lanes = 32;  // of a row: a power of two
  int pair = 32;   // lanes before this one hold chunks that are this far apart
  int visits = 0;  // of a warp until all heads are done
};
struct Layout {
  RowLanes rows[kMaxCacheRows];
  int visits = 0;           // of all
  int warps_per_token = 1;  // which share them
};

Layout LayOut(const CacheWriteParams& params) {
  // Enough warps for the latency of a short step; the largest steps have a warp a token.
  constexpr int kEnoughWarps = 8192;
  Layout layout;
  for (int i = 0; i < params.num_rows; ++i) {
    const CacheRows& rows = params.rows[i];
    RowLanes& l = layout.rows[i];
    l.lanes = 1;
    while (l.lanes < rows.dim / (kChunks * kChunk)) l.lanes *= 2;
    l.pair = rows.rotate && params.pairs == RopePairs::kHalves ? params.rope_dim / (2 * kChunk)
                                                               : l.lanes;
    const int at_once = 32 / l.lanes;
    l.visits = (rows.num_heads + at_once - 1) / at_once;
    layout.visits += l.visits;
  }
  while (layout.warps_per_token < layout.visits &&
         int64_t{params.num_tokens} * layout.warps_per_token < kEnoughWarps) {
    ++layout.warps_per_token;
  }
  return layout;
}

struct TokenPlace {
  int64_t page;
  int32_t offset;  // in its page
  const float* rope = nullptr;
};

// The last sequence that starts at or before the token: 32 candidates at a time.
__device__ int SequenceOf(const CacheWriteParams& params, int token, int lane) {
  int first = 0;
  for (int range = params.num_sequences; range > 1;) {
    const int step = (range + 31) / 32;
    const int candidate = first + lane * step;
    const bool before = lane * step < range && params.query_starts[candidate] <= token;
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(~0u, before)));
    first += last * step;
    range = min(step, params.num_sequences - first);
  }
  return first;
}

__device__ TokenPlace PlaceOf(const CacheWriteParams& params, int token, int lane) {
  const int position = params.positions[token];
  const int sequence = SequenceOf(params, token, lane);
  TokenPlace place;
  place.page =
      params.page_table[sequence * params.page_table_stride + position / params.page_tokens];
  place.offset = position % params.page_tokens;
  if (params.rope_tables != nullptr) {
    const int table = params.rope_rows == nullptr ? 0 : params.rope_rows[sequence];
    place.rope = params.rope_tables[table] + int64_t{position} * params.rope_dim;
  }
  return place;
}

template <class T>
__device__ T* At(const PagedPlane& plane, const TokenPlace& place, int head) {
  auto* base = static_cast<char*>(const_cast<void*>(plane.base));
  return reinterpret_cast<T*>(base + place.page * plane.page_stride_bytes +
                              place.offset * plane.token_stride_bytes +
                              head * plane.head_stride_bytes);
}

template <class Fold>
__device__ float FoldLanes(float x, int lanes, Fold&& fold) {
  for (int offset = 1; offset < lanes; offset *= 2) x = fold(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

__device__ void LoadFloats(const float* source, float (&x)[kChunk], int at, int count) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 4) {
    if (i >= count) return;
    const float4 v = *reinterpret_cast<const float4*>(source + i);
    x[at + i] = v.x;
    x[at + i + 1] = v.y;
    x[at + i + 2] = v.z;
    x[at + i + 3] = v.w;
  }
}

__device__ uint2 Encode(CacheCode code, const float (&x)[kChunk], float inverse) {
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    const float a = x[i] * inverse;
    const float b = x[i + 1] * inverse;
    const uint32_t both = code == CacheCode::kInt8
                              ? (static_cast<uint32_t>(__float2int_rn(a)) & 0xff) |
                                    (static_cast<uint32_t>(__float2int_rn(b)) & 0xff) << 8
                              : EncodeE4m3Pair(a, b);
    words[i / 4] |= both << (i % 4 * 8);
  }
  return make_uint2(words[0], words[1]);
}

template <bool kFloat16>
class Writer {
 public:
  using Type = ElementType<kFloat16>;

  __device__ Writer(const CacheWriteParams& params, const Layout& layout, int token, int lane)
      : params_(params),
        layout_(layout),
        token_(token),
        lane_(lane),
        place_(PlaceOf(params, token, lane)) {}

  __device__ void Run(int first) {
    if (first >= layout_.visits) return;
    Visit visit = VisitAt(first);
    uint4 words[kChunks];
    Load(visit, words);
    for (int index = first; index < layout_.visits; index += layout_.warps_per_token) {
      const Visit now = visit;
      float x[kChunks][kChunk];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) Unpack(words[c], x[c]);
      if (index + layout_.warps_per_token < layout_.visits) {
        visit = VisitAt(index + layout_.warps_per_token);
        Load(visit, words);
      }
      Write(now, x);
    }
  }

 private:
  struct Visit {
    int rows;  // which of params.rows
    int head;
    int lane;            // in the row
    int chunk[kChunks];  // -1: none
  };

  __device__ Visit VisitAt(int index) const {
    Visit v;
    v.rows = 0;
    while (index >= layout_.rows[v.rows].visits) index -= layout_.rows[v.rows++].visits;
    const RowLanes& l = layout_.rows[v.rows];
    const CacheRows& rows = params_.rows[v.rows];
    v.head = index * (32 / l.lanes) + lane_ / l.lanes;
    v.lane = lane_ % l.lanes;
    const int half = rows.dim / (2 * kChunk);
    const bool paired = v.lane < l.pair;
    v.chunk[0] = paired ? v.lane : v.lane + l.pair;
    v.chunk[1] = v.lane + (paired ? l.pair : half);
    const bool live = v.head < rows.num_heads && (l.pair == l.lanes || v.lane < half);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!live || v.chunk[c] >= rows.dim / kChunk) v.chunk[c] = -1;
    }
    return v;
  }

  __device__ const uint4* RowOf(const Visit& v) const {
    const CacheRows& rows = params_.rows[v.rows];
    return reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.rows) +
                                          token_ * rows.token_stride + v.head * rows.head_stride);
  }

  __device__ void Load(const Visit& v, uint4 (&words)[kChunks]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      words[c] = v.chunk[c] < 0 ? make_uint4(0, 0, 0, 0) : RowOf(v)[v.chunk[c]];
    }
  }

  __device__ static void Unpack(const uint4& v, float (&x)[kChunk]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = Type::Unpack(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }

  __device__ static uint4 Pack(const float (&x)[kChunk]) {
    return make_uint4(Type::Pack(x[0], x[1]), Type::Pack(x[2], x[3]), Type::Pack(x[4], x[5]),
                      Type::Pack(x[6], x[7]));
  }

  __device__ void Write(const Visit& v, float (&x)[kChunks][kChunk]) {
    const CacheRows& rows = params_.rows[v.rows];
    const int lanes = layout_.rows[v.rows].lanes;
    if (rows.norm != nullptr) Normalise(v, rows, lanes, x);
    if (rows.rotate && place_.rope != nullptr) Rotate(v, x);
    if (rows.code != CacheCode::kBf16 && rows.plane.base != nullptr) {
      Quantise(v, rows, lanes, x);
      return;
    }
    auto* target = rows.plane.base == nullptr ? const_cast<uint4*>(RowOf(v))
                                              : At<uint4>(rows.plane, place_, v.head);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (v.chunk[c] >= 0) target[v.chunk[c]] = Pack(x[c]);
    }
  }

  __device__ void Normalise(const Visit& v, const CacheRows& rows, int lanes,
                            float (&x)[kChunks][kChunk]) const {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) squares += x[c][i] * x[c][i];
    }
    squares = FoldLanes(squares, lanes, [](float a, float b) { return a + b; });
    const float factor = 1.f / sqrtf(squares / static_cast<float>(rows.dim) + params_.norm_eps);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (v.chunk[c] < 0) continue;
      float weight[kChunk];
      LoadFloats(rows.norm + v.chunk[c] * kChunk, weight, 0, kChunk);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) x[c][i] *= factor * weight[i];
    }
  }

  // The lane's angles are those of its lane in the row, so they are read when that changes.
  __device__ void Rotate(const Visit& v, float (&x)[kChunks][kChunk]) {
    const int half = params_.rope_dim / 2;
    const bool halves = params_.pairs == RopePairs::kHalves;
    if (halves ? v.lane * kChunk >= half : v.chunk[0] * kChunk >= params_.rope_dim) return;
    const bool second = halves || v.chunk[1] * kChunk < params_.rope_dim;
    if (v.lane != angles_of_) {
      angles_of_ = v.lane;
      if (halves) {
        LoadFloats(place_.rope + v.lane * kChunk, cosine_, 0, kChunk);
        LoadFloats(place_.rope + half + v.lane * kChunk, sine_, 0, kChunk);
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if (v.chunk[c] < 0 || (c == 1 && !second)) continue;
          const float* angles = place_.rope + v.chunk[c] * (kChunk / 2);
          LoadFloats(angles, cosine_, c * (kChunk / 2), kChunk / 2);
          LoadFloats(angles + half, sine_, c * (kChunk / 2), kChunk / 2);
        }
      }
    }
    if (halves) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) Turn(i, x[0][i], x[1][i]);
      return;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c == 1 && !second) continue;
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) {
        Turn(c * (kChunk / 2) + i, x[c][2 * i], x[c][2 * i + 1]);
      }
    }
  }

  __device__ void Turn(int i, float& a, float& b) const {
    const float turned = a * cosine_[i] - b * sine_[i];
    b = b * cosine_[i] + a * sine_[i];
    a = turned;
  }

  // A scale for a row, or for each 128 elements: 16 lanes' first or second chunks.
  __device__ void Quantise(const Visit& v, const CacheRows& rows, int lanes,
                           const float (&x)[kChunks][kChunk]) const {
    const bool whole = rows.scale_group == rows.dim;
    float peak[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      peak[c] = 0;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) peak[c] = fmaxf(peak[c], fabsf(x[c][i]));
    }
    if (whole) peak[0] = peak[1] = fmaxf(peak[0], peak[1]);
    const int group_lanes = whole ? lanes : rows.scale_group / kChunk;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      peak[c] = FoldLanes(peak[c], group_lanes, [](float a, float b) { return fmaxf(a, b); });
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (v.chunk[c] < 0) continue;
      const float largest = rows.code == CacheCode::kInt8 ? 127.f : kE4m3Max;
      const float scale = peak[c] > 0 ? peak[c] / largest : 1.f;
      At<uint2>(rows.plane, place_, v.head)[v.chunk[c]] = Encode(rows.code, x[c], 1.f / scale);
      if (v.lane % group_lanes == 0 && !(whole && c == 1)) {
        At<float>(rows.scales, place_, v.head)[v.chunk[c] * kChunk / rows.scale_group] = scale;
      }
    }
  }

  const CacheWriteParams& params_;
  const Layout& layout_;
  int64_t token_;
  int lane_;
  TokenPlace place_;
  int angles_of_ = -1;
  float cosine_[kChunk];
  float sine_[kChunk];
};

// Three blocks an SM: more rows on their way, worth the registers that it takes.
template <bool kFloat16>
__global__ __launch_bounds__(kWarps * 32, 3) void CacheWriteKernel(
    const __grid_constant__ CacheWriteParams params, const __grid_constant__ Layout layout) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int index = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int token = index / layout.warps_per_token;
  const int live = params.live_tokens == nullptr ? params.num_tokens : *params.live_tokens;
  if (token >= live) return;
  Writer<kFloat16>(params, layout, token, lane).Run(index % layout.warps_per_token);
}

}  // namespace

cudaError_t RunCacheWrite(const CacheWriteParams& params, cudaStream_t stream) {
  const Layout layout = LayOut(params);
  const int64_t warps = int64_t{params.num_tokens} * layout.warps_per_token;
  return LaunchKernel(
      params.float16 ? CacheWriteKernel<true> : CacheWriteKernel<false>,
      {.blocks = static_cast<int>((warps + kWarps - 1) / kWarps), .threads = kWarps * 32}, stream,
      params, layout);
}

}  // namespace fathom::kernels::cuda
