#pragma once
// Emulated src/kernels/cuda/ptx/mma.h.
#include <cstdint>

#include "kernels/cuda/ptx/sync.h"

namespace fathom::kernels::cuda::ptx {

inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
  simt::GatherWarp(&mine, sizeof(mine), all);
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4;
  const auto half = [](uint32_t pair, int i) { return i == 0 ? LowBf16(pair) : HighBf16(pair); };
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

inline void MmaFromZero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& x : d) x = 0;
  Mma(d, a, b0, b1);
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

inline uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  return PackBf16(LowBf16(a) * LowBf16(b) + LowBf16(c), HighBf16(a) * HighBf16(b) + HighBf16(c));
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
