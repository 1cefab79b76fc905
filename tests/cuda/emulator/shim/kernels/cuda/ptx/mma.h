#pragma once
// Emulated src/kernels/cuda/ptx/mma.h.
#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::ptx {

template <class Half>
void Multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Half half) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
  simt::GatherWarp(&mine, sizeof(mine), all);
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int lane_k = k % 8 / 2;
    for (int r = 0; r < 2; ++r) {
      const float x = half(all[g * 4 + lane_k].a[r + (k < 8 ? 0 : 2)], k % 2);
      for (int c = 0; c < 2; ++c) {
        const float y = half(all[(t * 2 + c) * 4 + lane_k].b[k < 8 ? 0 : 1], k % 2);
        d[r * 2 + c] += x * y;
      }
    }
  }
}

inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply(d, a, b0, b1,
           [](uint32_t pair, int i) { return i == 0 ? LowBf16(pair) : HighBf16(pair); });
}
inline void MmaFromZero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& x : d) x = 0;
  Mma(d, a, b0, b1);
}
inline void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply(d, a, b0, b1,
           [](uint32_t pair, int i) { return F16ToF32(static_cast<uint16_t>(pair >> (16 * i))); });
}
inline void MmaF16FromZero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& x : d) x = 0;
  MmaF16(d, a, b0, b1);
}

// Byte: what B has.
template <class Byte>
void MultiplyInt8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
  simt::GatherWarp(&mine, sizeof(mine), all);
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4;
  for (int k = 0; k < 32; ++k) {
    const int lane_k = k % 16 / 4;
    const int shift = 8 * (k % 4);
    for (int r = 0; r < 2; ++r) {
      const auto x = static_cast<int8_t>(all[g * 4 + lane_k].a[r + k / 16 * 2] >> shift);
      for (int c = 0; c < 2; ++c) {
        const auto y = static_cast<Byte>(all[(t * 2 + c) * 4 + lane_k].b[k / 16] >> shift);
        d[r * 2 + c] += x * y;
      }
    }
  }
}
inline void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyInt8<int8_t>(d, a, b0, b1);
}
inline void MmaInt8Uint8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyInt8<uint8_t>(d, a, b0, b1);
}

inline uint32_t TransposeMatrix(uint32_t v) {
  uint32_t all[32];
  simt::GatherWarp(&v, 4, all);
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4;
  const auto at = [&](int row, int column) {
    return all[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
  };
  return at(2 * t, g) | at(2 * t + 1, g) << 16;
}

inline uint32_t PackF16(float low, float high) {
  return F32ToF16(low) | static_cast<uint32_t>(F32ToF16(high)) << 16;
}
inline float2 UnpackF16(uint32_t packed) {
  return {F16ToF32(static_cast<uint16_t>(packed)), F16ToF32(static_cast<uint16_t>(packed >> 16))};
}
inline uint32_t AddF16x2(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t pair, int i) {
    return F16ToF32(static_cast<uint16_t>(pair >> (16 * i)));
  };
  return PackF16(half(a, 0) + half(b, 0), half(a, 1) + half(b, 1));
}
inline void E4m3ToF16(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto at = [codes](int i) {
    const auto code = static_cast<uint8_t>(codes >> (8 * i));
    return (code & 0x7f) == 0x7f ? NAN : DecodeE4m3(code);
  };
  low = PackF16(at(0), at(1));
  high = PackF16(at(2), at(3));
}

// Copies happen at the latest moment: when they are waited for.
inline void CopyBytes(uint32_t destination, const void* source, size_t bytes, bool copy) {
  simt::IssueCopy([=] {
    uint8_t* to = simt::SharedAt(destination, bytes);
    if (copy) {
      std::memcpy(to, source, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  });
}
inline void CopyAsync(uint32_t destination, const void* source, bool copy) {
  CopyBytes(destination, source, 16, copy);
}
inline void CopyAsync4(uint32_t destination, const void* source, bool copy) {
  CopyBytes(destination, source, 4, copy);
}
inline void CopyCommit() { simt::CommitCopies(); }
template <int kPending>
void CopyWait() {
  simt::WaitCopies(kPending);
}

}  // namespace fathom::kernels::cuda::ptx
