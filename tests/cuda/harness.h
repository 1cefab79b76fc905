#pragma once
// Inputs for attention kernels in host memory, poisoned where nothing may read, and float64
// references.
#include <cuda.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "attention/element.h"
#include "attention/weights.h"
#include "kernels/cuda/decode_params.h"
#include "order.h"

namespace fathom::cuda_test {

// Of a test's schedules. One where accesses are watched: that takes twenty times as long and finds
// what is not ordered, whatever the schedule.
inline std::vector<uint64_t> Seeds(std::initializer_list<uint64_t> all) {
  return {all.begin(), simt::kWatched ? all.begin() + 1 : all.end()};
}

inline constexpr int32_t kPoisonPage = 2147480000;

// Of 128 bytes, for the copy engine.
inline CUtensorMap MapOfRow(const float (&row)[32]) {
  CUtensorMap map{};
  map.base = reinterpret_cast<const uint8_t*>(row);
  map.element_bytes = 4;
  map.swizzle_bytes = 0;
  for (int d = 0; d < 4; ++d) map.box[d] = map.extents[d] = d == 0 ? 32 : 1;
  return map;
}

class Noise {
 public:
  explicit Noise(uint32_t seed) : engine_(seed) {}
  float Next(float scale) { return scale * std::uniform_real_distribution<float>(-1, 1)(engine_); }
  std::vector<uint16_t> Elements(size_t count, float scale, bool float16) {
    std::vector<uint16_t> values(count);
    for (uint16_t& v : values) v = bench::F32ToElement(Next(scale), float16);
    return values;
  }
  std::vector<uint16_t> Bf16(size_t count, float scale) { return Elements(count, scale, false); }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// The page table of a batch: pages in a scrambled order, entries past a sequence's end poisoned.
struct PageTable {
  std::vector<int32_t> entries;
  int64_t stride = 0;
  int64_t num_pages = 0;

  PageTable(const std::vector<int32_t>& kv_lengths, int page_tokens, Noise& noise);
  int64_t Page(size_t sequence, int entry) const {
    return entries[sequence * static_cast<size_t>(stride) + static_cast<size_t>(entry)];
  }
};

// A plane of a paged cache in token-major pages, bf16 until it becomes something else; rows without
// a token are NaN.
struct HostPlane {
  std::vector<uint16_t> data;
  std::vector<float> exact;  // what the elements stand for, where bf16 would round it
  int page_tokens = 0;
  int num_heads = 0;
  int dim = 0;

  HostPlane() = default;
  HostPlane(const PageTable& table, const std::vector<int32_t>& kv_lengths, int page_tokens,
            int num_heads, int dim, float scale, Noise& noise);
  const uint16_t* Row(const PageTable& table, size_t sequence, int token, int head) const {
    return data.data() +
           ((table.Page(sequence, token / page_tokens) * page_tokens + token % page_tokens) *
                num_heads +
            head) *
               dim;
  }
  // Elements become float16, poison stays NaN.
  void ToFloat16();
  // Of a bf16 or float16 plane.
  void Set(const PageTable& table, size_t sequence, int token, int head, int d, float value);
  double Value(const PageTable& table, size_t sequence, int token, int head, int d) const {
    const uint16_t* at = Row(table, sequence, token, head) + d;
    return exact.empty() ? double{Bf16ToF32(*at)}
                         : double{exact[static_cast<size_t>(at - data.data())]};
  }
  kernels::cuda::PagedPlane View() const {
    const int64_t token = int64_t{num_heads} * dim * 2;
    return {data.data(), page_tokens * token, token, int64_t{dim} * 2};
  }
};

// The plane's elements as codes, with scales [page][head][token]. Rows without a token keep their
// poison: scales of NaN. What `plane` holds becomes what the codes stand for.
struct QuantisedPlane {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  size_t first_byte = 0;  // aligned to 16
  int page_tokens = 0;
  int num_heads = 0;
  int dim = 0;

  QuantisedPlane() = default;
  QuantisedPlane(HostPlane* plane, kernels::cuda::CacheCode code, const PageTable& table,
                 const std::vector<int32_t>& kv_lengths);
  // A latent plane as tokens of 656 bytes: 512 codes, four scales, 64 elements of `rope`.
  QuantisedPlane(HostPlane* latents, const HostPlane& rope, kernels::cuda::CacheCode code,
                 const PageTable& table, const std::vector<int32_t>& kv_lengths);
  // At a byte of those tokens.
  kernels::cuda::PagedPlane TokenView(int offset) const {
    return {codes.data() + first_byte + offset, int64_t{page_tokens} * 656, 656, 656};
  }
  kernels::cuda::PagedPlane View() const {
    const int64_t token = int64_t{num_heads} * dim;
    return {codes.data(), page_tokens * token, token, dim};
  }
  kernels::cuda::PagedPlane Scales() const {
    return {scales.data(), int64_t{page_tokens} * num_heads * 4, 4, int64_t{page_tokens} * 4};
  }
};

using bench::Weights;

// Softmax attention of one row over `visible` keys, in float64.
struct RowReference {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};
// score(key) is scaled; value(key, d).
template <class Score, class Value>
RowReference AttendRow(int visible, int dim_v, Score score, Value value) {
  RowReference result;
  result.out.assign(static_cast<size_t>(dim_v), 0.0);
  if (visible <= 0) return result;
  std::vector<double> p(static_cast<size_t>(visible));
  double peak = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < visible; ++i) {
    p[static_cast<size_t>(i)] = score(i);
    peak = std::max(peak, p[static_cast<size_t>(i)]);
  }
  if (std::isinf(peak)) return result;
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - peak);
  for (int i = 0; i < visible; ++i) {
    const double w = p[static_cast<size_t>(i)] / sum;
    if (w == 0) continue;
    for (int d = 0; d < dim_v; ++d) result.out[static_cast<size_t>(d)] += w * value(i, d);
  }
  result.lse = peak + std::log(sum);
  return result;
}

// Relative error in norm over all rows, and the largest difference of lse.
class Errors {
 public:
  void Add(const RowReference& want, const uint16_t* out, float lse, bool float16 = false);
  double out() const {
    return norm_ == 0 ? std::sqrt(difference_) : std::sqrt(difference_ / norm_);
  }
  double lse() const { return lse_; }

 private:
  double difference_ = 0;
  double norm_ = 0;
  double lse_ = 0;
};

}  // namespace fathom::cuda_test
