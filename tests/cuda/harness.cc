#include "harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda/fp8.h"

namespace fathom::cuda_test {

PageTable::PageTable(const std::vector<int32_t>& kv_lengths, int page_tokens, Noise& noise) {
  int longest = 0;
  int64_t used = 0;
  for (const int32_t length : kv_lengths) {
    longest = std::max(longest, length);
    used += (length + page_tokens - 1) / page_tokens;
  }
  stride = (longest + page_tokens - 1) / page_tokens + 3;
  num_pages = used + 3;
  entries.assign(static_cast<size_t>(stride) * kv_lengths.size(), kPoisonPage);
  std::vector<int32_t> order(static_cast<size_t>(num_pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), noise.engine());
  size_t next = 0;
  for (size_t b = 0; b < kv_lengths.size(); ++b) {
    for (int i = 0; i < (kv_lengths[b] + page_tokens - 1) / page_tokens; ++i) {
      entries[b * static_cast<size_t>(stride) + static_cast<size_t>(i)] = order[next++];
    }
  }
}

HostPlane::HostPlane(const PageTable& table, const std::vector<int32_t>& kv_lengths,
                     int page_tokens_, int num_heads_, int dim_, float scale, Noise& noise)
    : page_tokens(page_tokens_), num_heads(num_heads_), dim(dim_) {
  data.assign(static_cast<size_t>(table.num_pages * page_tokens * num_heads * dim), 0xffff);
  for (size_t b = 0; b < kv_lengths.size(); ++b) {
    for (int t = 0; t < kv_lengths[b]; ++t) {
      auto* row = const_cast<uint16_t*>(Row(table, b, t, 0));
      for (int i = 0; i < num_heads * dim; ++i) row[i] = F32ToBf16(noise.Next(scale));
    }
  }
}

void HostPlane::ToFloat16() {
  exact.resize(data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = F32ToF16(Bf16ToF32(data[i]));
    exact[i] = F16ToF32(data[i]);
  }
}

void HostPlane::Set(const PageTable& table, size_t sequence, int token, int head, int d,
                    float value) {
  const bool float16 = !exact.empty();
  const auto at = static_cast<size_t>(Row(table, sequence, token, head) + d - data.data());
  data[at] = bench::F32ToElement(value, float16);
  if (float16) exact[at] = F16ToF32(data[at]);
}

namespace {

// `count` elements of a row: codes, their scale, and what they stand for.
float Quantise(const uint16_t* row, int count, bool int8, uint8_t* codes, float* exact) {
  float peak = 0;
  for (int d = 0; d < count; ++d) peak = std::max(peak, std::abs(Bf16ToF32(row[d])));
  const float scale = peak > 0 ? peak / (int8 ? 127.f : kernels::cuda::kE4m3Max) : 1.f;
  for (int d = 0; d < count; ++d) {
    const float x = Bf16ToF32(row[d]) / scale;
    const auto integer = static_cast<int8_t>(int8 ? std::nearbyint(x) : 0);
    codes[d] = int8 ? static_cast<uint8_t>(integer) : kernels::cuda::EncodeE4m3(x);
    exact[d] = (int8 ? static_cast<float>(integer) : kernels::cuda::DecodeE4m3(codes[d])) * scale;
  }
  return scale;
}

}  // namespace

QuantisedPlane::QuantisedPlane(HostPlane* plane, kernels::cuda::CacheCode code,
                               const PageTable& table, const std::vector<int32_t>& kv_lengths)
    : page_tokens(plane->page_tokens), num_heads(plane->num_heads), dim(plane->dim) {
  codes.assign(plane->data.size(), 0xff);
  scales.assign(plane->data.size() / static_cast<size_t>(dim), NAN);
  plane->exact.assign(plane->data.size(), NAN);
  for (size_t b = 0; b < kv_lengths.size(); ++b) {
    for (int t = 0; t < kv_lengths[b]; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        const uint16_t* row = plane->Row(table, b, t, h);
        const int64_t page = table.Page(b, t / page_tokens);
        const auto at = static_cast<size_t>(row - plane->data.data());
        scales[static_cast<size_t>((page * num_heads + h) * page_tokens + t % page_tokens)] =
            Quantise(row, dim, code == kernels::cuda::CacheCode::kInt8, &codes[at],
                     &plane->exact[at]);
      }
    }
  }
}

QuantisedPlane::QuantisedPlane(HostPlane* latents, const HostPlane& rope,
                               kernels::cuda::CacheCode code, const PageTable& table,
                               const std::vector<int32_t>& kv_lengths)
    : page_tokens(latents->page_tokens), num_heads(1), dim(latents->dim) {
  constexpr int kGroup = 128;
  codes.assign(static_cast<size_t>(table.num_pages * page_tokens * 656 + 16), 0xff);
  first_byte = 16 - reinterpret_cast<uintptr_t>(codes.data()) % 16;
  latents->exact.assign(latents->data.size(), NAN);
  for (size_t b = 0; b < kv_lengths.size(); ++b) {
    for (int t = 0; t < kv_lengths[b]; ++t) {
      const uint16_t* row = latents->Row(table, b, t, 0);
      uint8_t* token = codes.data() + first_byte +
                       (table.Page(b, t / page_tokens) * page_tokens + t % page_tokens) * 656;
      for (int g = 0; g < dim / kGroup; ++g) {
        const float scale = Quantise(
            row + g * kGroup, kGroup, code == kernels::cuda::CacheCode::kInt8, token + g * kGroup,
            &latents->exact[static_cast<size_t>(row - latents->data.data()) + g * kGroup]);
        std::memcpy(token + dim + g * 4, &scale, 4);
      }
      std::memcpy(token + dim + 16, rope.Row(table, b, t, 0), 128);
    }
  }
}

void Errors::Add(const RowReference& want, const uint16_t* out, float lse, bool float16) {
  for (size_t d = 0; d < want.out.size(); ++d) {
    const double value = bench::ElementToF32(out[d], float16);
    if (!std::isfinite(value)) difference_ = std::numeric_limits<double>::infinity();
    difference_ += (value - want.out[d]) * (value - want.out[d]);
    norm_ += want.out[d] * want.out[d];
  }
  if (std::isinf(want.lse) && std::isinf(lse) && lse < 0) return;
  const double gap = std::abs(want.lse - lse);
  lse_ = std::isfinite(gap) ? std::max(lse_, gap) : std::numeric_limits<double>::infinity();
}

}  // namespace fathom::cuda_test
