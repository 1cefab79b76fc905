#pragma once
// Device memory, timing and reference results for the attention benchmark.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/decode_params.h"
#include "weights.h"

namespace fathom::bench {

void CheckCuda(cudaError_t status, const char* what);  // aborts with the runtime's words

// Owns device memory; freed at scope end.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    CheckCuda(cudaMalloc(&data_, static_cast<size_t>(bytes)), "cudaMalloc");
  }
  template <class T>
  explicit Buffer(const std::vector<T>& values)
      : Buffer(static_cast<int64_t>(values.size() * sizeof(T))) {
    CheckCuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              "copy to device");
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }

  template <class T>
  T* As() const {
    return static_cast<T*>(data_);
  }
  void Fill(int byte) const {
    CheckCuda(cudaMemset(data_, byte, static_cast<size_t>(bytes_)), "cudaMemset");
  }
  template <class T>
  std::vector<T> Read() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    CheckCuda(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
              "copy to host");
    return values;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// What L2 holds before a timed run: 256 MiB of something else, just written (lines that must go
// back to memory before they make room) or just read.
enum class L2 { kDirty, kClean };

// Median microseconds of `work`, captured into a graph once and replayed with a cold L2.
double TimeCold(const std::function<void(cudaStream_t)>& work, int repeats, L2 state);

// A paged cache plane as values see it: row (sequence, token, head) of `dim` elements, bf16 or
// codes with a scale.
struct PlaneShape {
  int64_t page_stride_bytes = 0;
  int64_t token_stride_bytes = 0;
  int64_t head_stride_bytes = 0;
  int num_heads = 0;
  int dim = 0;
  kernels::cuda::CacheCode code = kernels::cuda::CacheCode::kBf16;
  bool float16 = false;  // where the code says bf16
  kernels::cuda::PagedPlane scales;
  int scale_group = 0;  // elements that share one
};

// Every row that holds a token. Noise is pseudo-random in (-1, 1); where the plane is quantised its
// scales vary by a factor of three.
void FillPlane(void* base, const PlaneShape& plane, const int32_t* page_table, int table_stride,
               int page_tokens, const int32_t* kv_lengths, int num_sequences, int max_kv_tokens,
               const PlaneFill& fill);
void LaunchEmpty(cudaStream_t stream);  // a kernel that does nothing
void FillRandom(void* data, int64_t elements, float scale, uint32_t seed, bool float16 = false);
// Of cases that have weights: [rows, dim], zeros but for a one at `along`.
Buffer UnitQueries(int64_t rows, int dim, int along, bool float16);

// A query row: token `token` of a sequence, one head.
struct QueryRow {
  int32_t sequence = 0;
  int32_t token = 0;
  int32_t head = 0;
  int32_t learned_rows = 0;  // that it sees behind its keys
};

// Naive float32 attention over the same memory. Latent caches have plane 1 as the tail of keys and
// plane 0 as values.
struct ReferenceInputs {
  const void* q = nullptr;  // bf16 [num_tokens, num_heads, dim_qk], contiguous
  bool float16 = false;     // queries and learned rows
  const void* base[2] = {};
  PlaneShape plane[2];
  bool latent = false;
  bool causal = true;
  int window = INT32_MAX;  // causal: key k is seen from p when p - k <= window or k < anchors
  int anchors = 0;
  const uint8_t* seen = nullptr;  // [rows asked about, max_kv_tokens], in place of them
  const void* learned[2] = {};    // [learned_rows, kv heads, dim]
  int learned_rows = 0;
  const int32_t* page_table = nullptr;
  int table_stride = 0;
  int page_tokens = 0;
  const int32_t* kv_lengths = nullptr;
  const int32_t* query_starts = nullptr;
  int max_kv_tokens = 0;
  int num_heads = 0;
  int group = 0;
  int dim_qk = 0;
  int dim_v = 0;
  float scale = 0;
};

struct ReferenceResult {
  std::vector<float> out;  // [rows, dim_v]
  std::vector<float> lse;  // [rows]
};
ReferenceResult Reference(const ReferenceInputs& in, const std::vector<QueryRow>& rows);

struct AttentionErrors {
  double out = 0;  // ||out - ref|| / ||ref||
  double lse = 0;  // largest |lse - ref|
  bool finite = false;
};
// Row i of the reference against row index[i] of the output.
AttentionErrors Compare(const ReferenceResult& want, const std::vector<int64_t>& index,
                        const std::vector<uint16_t>& out, const std::vector<float>& lse, int dim_v,
                        bool float16 = false);

}  // namespace fathom::bench
