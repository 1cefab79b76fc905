#include <algorithm>

#include "device.h"
#include "element.h"
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/fp8.h"

namespace fathom::bench {
namespace {

__device__ float Noise(uint64_t index, uint32_t seed) {
  uint64_t x = index * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull + 0x94d049bb133111ebull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return static_cast<float>(static_cast<uint32_t>(x >> 32)) * (2.f / 4294967296.f) - 1.f;
}

using kernels::cuda::CacheCode;

using Bf16 = kernels::cuda::ElementType<false>;
using Float16 = kernels::cuda::ElementType<true>;

__device__ float LoadElement(const void* data, int64_t i, bool float16) {
  const uint32_t bits = static_cast<const uint16_t*>(data)[i];
  return (float16 ? Float16::Unpack(bits) : Bf16::Unpack(bits)).x;
}
__device__ void StoreElement(void* data, int64_t i, float value, bool float16) {
  auto* at = static_cast<uint16_t*>(data) + i;
  float16 ? Float16::Store(at, value) : Bf16::Store(at, value);
}

__device__ int64_t Offset(int64_t page, int in_page, int head, int64_t page_stride,
                          int64_t token_stride, int64_t head_stride) {
  return page * page_stride + in_page * token_stride + head * head_stride;
}

// A row of a plane, whatever it is stored as.
struct Row {
  char* elements = nullptr;
  float* scales = nullptr;
  int scale_group = 1;
  CacheCode code = CacheCode::kBf16;
  bool float16 = false;

  __device__ float operator[](int i) const {
    if (code == CacheCode::kBf16) {
      return LoadElement(elements, i, float16);
    }
    const auto byte = reinterpret_cast<const uint8_t*>(elements)[i];
    const float value = code == CacheCode::kInt8 ? static_cast<float>(static_cast<int8_t>(byte))
                                                 : kernels::cuda::DecodeE4m3(byte);
    return value * scales[i / scale_group];
  }
};

__device__ Row RowOf(const void* base, const PlaneShape& plane, const int32_t* page_table,
                     int table_stride, int page_tokens, int sequence, int token, int head) {
  const int64_t page = page_table[int64_t{sequence} * table_stride + token / page_tokens];
  Row row;
  row.code = plane.code;
  row.float16 = plane.float16;
  row.elements = const_cast<char*>(static_cast<const char*>(base)) +
                 Offset(page, token % page_tokens, head, plane.page_stride_bytes,
                        plane.token_stride_bytes, plane.head_stride_bytes);
  if (plane.code != CacheCode::kBf16) {
    row.scale_group = plane.scale_group;
    row.scales = reinterpret_cast<float*>(
        const_cast<char*>(static_cast<const char*>(plane.scales.base)) +
        Offset(page, token % page_tokens, head, plane.scales.page_stride_bytes,
               plane.scales.token_stride_bytes, plane.scales.head_stride_bytes));
  }
  return row;
}

__device__ Row RowOf(const ReferenceInputs& in, int plane, int sequence, int token, int head) {
  return RowOf(in.base[plane], in.plane[plane], in.page_table, in.table_stride, in.page_tokens,
               sequence, token, head);
}

// Key or value `key` of a query row, learned ones behind those that it can see.
__device__ Row RowOf(const ReferenceInputs& in, int plane, const QueryRow& row, int visible,
                     int key) {
  const int kv_head = row.head / in.group;
  if (key < visible) return RowOf(in, plane, row.sequence, key, kv_head);
  const int dim = plane == 0 ? in.dim_qk : in.dim_v;
  const int64_t at = (int64_t{key - visible} * (in.num_heads / in.group) + kv_head) * dim;
  Row learned;
  learned.float16 = in.float16;
  learned.elements =
      const_cast<char*>(static_cast<const char*>(plane == 0 ? in.learned[0] : in.learned[1])) +
      at * 2;
  return learned;
}

__global__ void FillPlaneKernel(void* base, PlaneShape plane, const int32_t* page_table,
                                int table_stride, int page_tokens, const int32_t* kv_lengths,
                                PlaneFill fill) {
  const int sequence = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.x);
  if (token >= kv_lengths[sequence]) return;
  const bool int8 = plane.code == CacheCode::kInt8;
  const bool codes = plane.code != CacheCode::kBf16;
  const float largest = !codes ? 1.f : int8 ? 127.f : kernels::cuda::kE4m3Max;
  for (int i = static_cast<int>(threadIdx.x); i < plane.num_heads * plane.dim; i += blockDim.x) {
    const Row row =
        RowOf(base, plane, page_table, table_stride, page_tokens, sequence, token, i / plane.dim);
    const uint64_t index =
        (uint64_t{blockIdx.y} << 40) + uint64_t{blockIdx.x} * plane.num_heads * plane.dim + i;
    const int at = i % plane.dim;
    const int in_group = codes ? at % plane.scale_group : 0;
    const FilledElement e =
        FillElement(fill, largest, token, at, Noise(index, fill.seed),
                    Noise(index - static_cast<uint64_t>(in_group), fill.seed + 1));
    if (!codes) {
      StoreElement(row.elements, at, e.unit * e.magnitude, row.float16);
      continue;
    }
    reinterpret_cast<uint8_t*>(row.elements)[at] =
        int8 ? static_cast<uint8_t>(__float2int_rn(e.unit * largest))
             : kernels::cuda::EncodeE4m3(e.unit * largest);
    if (in_group == 0) row.scales[at / plane.scale_group] = e.magnitude / largest;
  }
}

__global__ void FillRandomKernel(void* data, int64_t elements, float scale, uint32_t seed,
                                 bool float16) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < elements) StoreElement(data, i, scale * Noise(static_cast<uint64_t>(i), seed), float16);
}

__device__ int Visible(const ReferenceInputs& in, const QueryRow& row) {
  const int queries = in.query_starts[row.sequence + 1] - in.query_starts[row.sequence];
  const int kv_tokens = in.kv_lengths[row.sequence];
  return in.causal ? kv_tokens - (queries - 1 - row.token) : kv_tokens;
}

// scores [rows, max_kv_tokens + learned_rows], from row `first_row` on; one warp a key.
__global__ void ScoresKernel(ReferenceInputs in, const QueryRow* rows, unsigned first_row,
                             float* scores) {
  const int64_t index = first_row + blockIdx.y;
  const QueryRow row = rows[index];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t q =
      (int64_t{in.query_starts[row.sequence] + row.token} * in.num_heads + row.head) * in.dim_qk;
  const int visible = Visible(in, row);
  const int first = in.latent ? in.dim_v : in.dim_qk;  // elements of plane 0
  for (int key = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
       key < visible + row.learned_rows; key += static_cast<int>(gridDim.x * blockDim.x) / 32) {
    Row k = RowOf(in, 0, row, visible, key);
    float sum = 0;
    for (int i = lane; i < first; i += 32) sum += LoadElement(in.q, q + i, in.float16) * k[i];
    if (in.latent) {
      k = RowOf(in, 1, row.sequence, key, 0);
      for (int i = lane; i < in.dim_qk - first; i += 32) {
        sum += LoadElement(in.q, q + first + i, in.float16) * k[i];
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    bool seen = key >= visible || visible - 1 - key <= in.window || key < in.anchors;
    if (in.seen != nullptr && key < visible) seen = in.seen[index * in.max_kv_tokens + key] != 0;
    if (lane == 0) {
      scores[index * (in.max_kv_tokens + in.learned_rows) + key] =
          seen ? sum * in.scale : -INFINITY;
    }
  }
}

__device__ float BlockReduce(float value, bool maximum) {
  __shared__ float parts[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, value, offset);
    value = maximum ? fmaxf(value, other) : value + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / 32; ++i) {
    value = maximum ? fmaxf(value, parts[i]) : value + parts[i];
  }
  return value;
}

// One block a row: softmax in place, then the weighted sum of values.
__global__ void ValuesKernel(ReferenceInputs in, const QueryRow* rows, float* scores, float* out,
                             float* lse) {
  const QueryRow row = rows[blockIdx.x];
  const int visible = Visible(in, row);
  const int keys = max(visible, 0) + row.learned_rows;
  float* p = scores + int64_t{blockIdx.x} * (in.max_kv_tokens + in.learned_rows);
  float peak = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < keys; i += blockDim.x) {
    peak = fmaxf(peak, p[i]);
  }
  peak = BlockReduce(peak, true);
  const bool empty = peak == -INFINITY;
  if (empty) peak = 0;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < keys; i += blockDim.x) {
    p[i] = expf(p[i] - peak);
    sum += p[i];
  }
  sum = BlockReduce(sum, false);
  __syncthreads();
  if (threadIdx.x == 0) lse[blockIdx.x] = empty ? -INFINITY : peak + logf(sum);
  for (int d = static_cast<int>(threadIdx.x); d < in.dim_v; d += blockDim.x) {
    float total = 0;
    for (int key = 0; key < keys; ++key) {
      if (p[key] != 0) total += p[key] * RowOf(in, in.latent ? 0 : 1, row, visible, key)[d];
    }
    out[int64_t{blockIdx.x} * in.dim_v + d] = empty ? 0.f : total / sum;
  }
}

template <class... Params, class... Arguments>
void Launch(const char* what, void (*kernel)(Params...), dim3 blocks, int threads,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  CheckCuda(cudaLaunchKernelEx(&config, kernel, Params(arguments)...), what);
}

}  // namespace

void FillPlane(void* base, const PlaneShape& plane, const int32_t* page_table, int table_stride,
               int page_tokens, const int32_t* kv_lengths, int num_sequences, int max_kv_tokens,
               const PlaneFill& fill) {
  if (max_kv_tokens == 0) return;
  Launch("FillPlane", FillPlaneKernel, dim3(max_kv_tokens, num_sequences), 256, base, plane,
         page_table, table_stride, page_tokens, kv_lengths, fill);
}

void FillRandom(void* data, int64_t elements, float scale, uint32_t seed, bool float16) {
  Launch("FillRandom", FillRandomKernel, dim3(static_cast<unsigned>((elements + 255) / 256)), 256,
         data, elements, scale, seed, float16);
}

Buffer UnitQueries(int64_t rows, int dim, int along, bool float16) {
  std::vector<uint16_t> elements(static_cast<size_t>(rows * dim));
  for (size_t i = along; i < elements.size(); i += dim) elements[i] = F32ToElement(1, float16);
  return Buffer(elements);
}

ReferenceResult Reference(const ReferenceInputs& in, const std::vector<QueryRow>& rows) {
  const auto count = static_cast<unsigned>(rows.size());
  const Buffer list(rows);
  const Buffer scores(int64_t{count} * std::max(in.max_kv_tokens + in.learned_rows, 1) * 4);
  const Buffer out(int64_t{count} * in.dim_v * 4);
  const Buffer lse(int64_t{count} * 4);
  const auto chunks = static_cast<unsigned>(std::clamp(in.max_kv_tokens / 64, 1, 256));
  // Rows in the y dimension are limited to 65535 a launch.
  for (unsigned first = 0; first < count; first += 65535) {
    Launch("Reference", ScoresKernel, dim3(chunks, std::min(count - first, 65535u)), 128, in,
           list.As<QueryRow>(), first, scores.As<float>());
  }
  Launch("Reference", ValuesKernel, dim3(count), std::min(in.dim_v, 512), in, list.As<QueryRow>(),
         scores.As<float>(), out.As<float>(), lse.As<float>());
  CheckCuda(cudaDeviceSynchronize(), "Reference");
  return {out.Read<float>(), lse.Read<float>()};
}

}  // namespace fathom::bench
