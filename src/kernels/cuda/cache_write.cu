// Rotation, RMS norm, quantisation and the write into pages, in one pass over a step's rows: one
// warp a row, eight consecutive elements a lane (two times eight in rows of 512).
#include <cuda_bf16.h>

#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kChunk = 8;       // elements of a lane
constexpr int kMaxChunks = 2;   // a lane's

struct TokenPlace {
  int64_t page;
  int32_t offset;  // in its page
  const float* rope = nullptr;
};

__device__ TokenPlace PlaceOf(const CacheWriteParams& params, int token) {
  int low = 0;
  int high = params.num_sequences - 1;
  while (low < high) {  // the last sequence that starts at or before the token
    const int middle = (low + high + 1) / 2;
    if (params.query_starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int position = params.positions[token];
  TokenPlace place;
  place.page = params.page_table[low * params.page_table_stride + position / params.page_tokens];
  place.offset = position % params.page_tokens;
  if (params.rope_tables != nullptr) {
    const int table = params.rope_rows == nullptr ? 0 : params.rope_rows[low];
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

__device__ float WarpSum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ void Load(const uint16_t* row, int chunk, int chunks, float (&x)[kChunk]) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (chunk < chunks) v = *reinterpret_cast<const uint4*>(row + chunk * kChunk);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = ptx::LowBf16(words[i]);
    x[2 * i + 1] = ptx::HighBf16(words[i]);
  }
}

// The first rope_dim elements of a row, which are the first chunk of as many lanes.
__device__ void Rotate(const CacheWriteParams& params, const float* table, int lane,
                       float (&x)[kChunk]) {
  const int half = params.rope_dim / 2;
  if (params.pairs == RopePairs::kInterleaved) {
    if (lane * kChunk >= params.rope_dim) return;
    const int first = lane * kChunk / 2;
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const float cosine = table[first + i];
      const float sine = table[half + first + i];
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cosine - b * sine;
      x[2 * i + 1] = b * cosine + a * sine;
    }
    return;
  }
  const int half_lanes = half / kChunk;
  const bool low = lane < half_lanes;
  const int partner = low ? lane + half_lanes : lane - half_lanes;
  const bool rotated = lane < 2 * half_lanes;
  const int first = (low ? lane : partner) * kChunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float other = __shfl_sync(~0u, x[i], rotated ? partner : lane);
    if (!rotated) continue;
    const float cosine = table[first + i];
    const float sine = table[half + first + i];
    x[i] = low ? x[i] * cosine - other * sine : x[i] * cosine + other * sine;
  }
}

__device__ uint4 PackBf16(const float (&x)[kChunk]) {
  return make_uint4(ptx::PackBf16(x[0], x[1]), ptx::PackBf16(x[2], x[3]),
                    ptx::PackBf16(x[4], x[5]), ptx::PackBf16(x[6], x[7]));
}

__device__ uint2 Encode(CacheCode code, const float (&x)[kChunk], float inverse) {
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    uint32_t byte;
    if (code == CacheCode::kInt8) {
      byte = static_cast<uint32_t>(__float2int_rn(x[i] * inverse)) & 0xff;
    } else {
      byte = EncodeE4m3(x[i] * inverse);
    }
    words[i / 4] |= byte << (i % 4 * 8);
  }
  return make_uint2(words[0], words[1]);
}

__device__ void WriteRow(const CacheWriteParams& params, const CacheRows& rows, int token, int head,
                         const TokenPlace& place, int lane) {
  const auto* row = static_cast<const uint16_t*>(rows.rows) + token * rows.token_stride +
                    head * rows.head_stride;
  const int chunks = rows.dim / kChunk;
  float x[kMaxChunks][kChunk];
#pragma unroll
  for (int c = 0; c < kMaxChunks; ++c) Load(row, lane + c * 32, chunks, x[c]);
  if (rows.norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) squares += x[c][i] * x[c][i];
    }
    const float factor =
        1.f / sqrtf(WarpSum(squares) / static_cast<float>(rows.dim) + params.norm_eps);
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      const int chunk = lane + c * 32;
      if (chunk >= chunks) continue;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) x[c][i] *= factor * rows.norm[chunk * kChunk + i];
    }
  }
  if (rows.rotate && place.rope != nullptr) Rotate(params, place.rope, lane, x[0]);

  if (rows.plane.base == nullptr) {
    auto* target = reinterpret_cast<uint4*>(const_cast<uint16_t*>(row));
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (lane + c * 32 < chunks) target[lane + c * 32] = PackBf16(x[c]);
    }
    return;
  }
  if (rows.code == CacheCode::kBf16) {
    auto* target = At<uint4>(rows.plane, place, head);
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (lane + c * 32 < chunks) target[lane + c * 32] = PackBf16(x[c]);
    }
    return;
  }
  // Groups of lanes share a scale: 16 of them have 128 elements; a whole row of up to 256 is 32.
  const int group_lanes = min(rows.scale_group / kChunk, 32);
#pragma unroll
  for (int c = 0; c < kMaxChunks; ++c) {
    float peak = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) peak = fmaxf(peak, fabsf(x[c][i]));
    for (int offset = 1; offset < group_lanes; offset *= 2) {
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, offset));
    }
    const int chunk = lane + c * 32;
    if (chunk >= chunks) continue;
    const float largest = rows.code == CacheCode::kInt8 ? 127.f : kE4m3Max;
    const float scale = peak > 0 ? peak / largest : 1.f;
    At<uint2>(rows.plane, place, head)[chunk] = Encode(rows.code, x[c], 1.f / scale);
    if (lane % group_lanes == 0) {
      At<float>(rows.scales, place, head)[chunk * kChunk / rows.scale_group] = scale;
    }
  }
}

__global__ __launch_bounds__(kWarps * 32) void CacheWriteKernel(
    const __grid_constant__ CacheWriteParams params, int units) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int index = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int token = index / units;
  const int live = params.live_tokens == nullptr ? params.num_tokens : *params.live_tokens;
  if (token >= live) return;
  const TokenPlace place = PlaceOf(params, token);
  int head = index % units;
#pragma unroll
  for (int i = 0; i < kMaxCacheRows; ++i) {
    if (i >= params.num_rows) return;
    const CacheRows& rows = params.rows[i];
    if (head < rows.num_heads) {
      WriteRow(params, rows, token, head, place, lane);
      return;
    }
    head -= rows.num_heads;
  }
}

}  // namespace

cudaError_t RunCacheWrite(const CacheWriteParams& params, cudaStream_t stream) {
  int units = 0;
  for (int i = 0; i < params.num_rows; ++i) units += params.rows[i].num_heads;
  const int64_t warps = int64_t{params.num_tokens} * units;
  return LaunchKernel(
      CacheWriteKernel,
      {.blocks = static_cast<int>((warps + kWarps - 1) / kWarps), .threads = kWarps * 32}, stream,
      params, units);
}

}  // namespace fathom::kernels::cuda
