#pragma once
// Emulated src/kernels/cuda/ptx/wgmma.h: operands are read from swizzled shared memory through
// descriptors, with the layouts of the PTX manual.
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"

namespace fathom::kernels::cuda::ptx {

enum class Major : int { kK = 0, kMn = 1 };

inline uint64_t Descriptor(uint32_t shared_address, uint32_t mn_stride = 16) {
  if (shared_address >> 18) simt::Fail("descriptor of an address past 256 KiB");
  return 1ull << 62 | (1024ull >> 4) << 32 | static_cast<uint64_t>(mn_stride >> 4) << 16 |
         (shared_address & 0x3ffff) >> 4;
}
inline uint64_t Advance(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

inline void WgmmaFence() {}
inline void WgmmaCommit() { simt::CommitMatrix(); }
template <int kPending>
void WgmmaWait() {
  simt::WaitMatrix(kPending);
}
template <int kCount>
void WgmmaFenceRegisters(float (&)[kCount]) {}

// Where element (i, k) of an operand lies.
inline uint32_t OperandAddress(uint64_t descriptor, Major major, int i, int k) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto mn_stride = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const auto atom_stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  uint32_t at = start;
  if (major == Major::kK) {  // atoms of 8 rows x 128 bytes along i
    at += static_cast<uint32_t>(i / 8) * atom_stride + static_cast<uint32_t>(i % 8) * 128 +
          static_cast<uint32_t>(k) * 2;
  } else {  // atoms of 8 k x 64 i; atom_stride along k, mn_stride along i
    at += static_cast<uint32_t>(i / 64) * mn_stride + static_cast<uint32_t>(k / 8) * atom_stride +
          static_cast<uint32_t>(k % 8) * 128 + static_cast<uint32_t>(i % 64) * 2;
  }
  return SwizzledOffset(at, 128);
}

// out[i][k], i < count, k < 16. Once for all threads of a warpgroup: TouchOperand tells who reads.
template <bool kFloat16>
FATHOM_SIMT_UNWATCHED void ReadOperand(uint64_t descriptor, Major major, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    for (int k = 0; k < 16; ++k) {
      uint16_t bits;
      const uint32_t at = OperandAddress(descriptor, major, i, k);
      std::memcpy(&bits, simt::SharedAt(at, 2), 2);
      simt::CheckProxy(at, 2, "matrix operand");
      out[i * 16 + k] = kFloat16 ? F16ToF32(bits) : __bfloat162float({bits});
    }
  }
}

// Every warp reads its rows of A and all of B: here its first lane does.
inline void TouchOperand(uint64_t descriptor, Major major, int first, int count) {
  if (!simt::kWatched || simt::Lane() != 0) return;
  const bool rows = major == Major::kK;
  for (int i = first; i < first + count; i += rows ? 1 : 8) {
    for (int k = 0; k < 16; k += rows ? 8 : 1) {
      simt::TouchRead(simt::SharedAt(OperandAddress(descriptor, major, i, k), 16), 16);
    }
  }
}

template <int kN, bool kFloat16>
const float* OperandB(uint64_t index, uint64_t b, Major major) {
  TouchOperand(b, major, 0, kN);
  return static_cast<const float*>(simt::SharedOfWarpgroup(
      kN * 16 * sizeof(float),
      [&](void* out) { ReadOperand<kFloat16>(b, major, kN, static_cast<float*>(out)); },
      index * 2));
}

// a0, a1: rows lane / 4 and + 8 of the warp's 16.
template <int kN>
FATHOM_SIMT_UNWATCHED void Multiply(float* d, const float* a0, const float* a1, const float* b,
                                    bool accumulate) {
  const int lane = simt::Lane();
  for (int j = 0; j < kN / 8; ++j) {
    for (int c = 0; c < 2; ++c) {
      const float* column = b + (j * 8 + lane % 4 * 2 + c) * 16;
      float x = accumulate ? d[j * 4 + c] : 0.f;
      float y = accumulate ? d[j * 4 + 2 + c] : 0.f;
      for (int k = 0; k < 16; ++k) {
        x += a0[k] * column[k];
        y += a1[k] * column[k];
      }
      d[j * 4 + c] = x;
      d[j * 4 + 2 + c] = y;
    }
  }
}

template <int kN, Major kMajorA, Major kMajorB, bool kFloat16 = false>
void WgmmaSS(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  const uint64_t index = simt::NextMatrixIndex();
  float* to = d;
  simt::IssueMatrix([=] {
    const int row = simt::Warp() % 4 * 16 + simt::Lane() / 4;
    TouchOperand(a, kMajorA, simt::Warp() % 4 * 16, 16);
    const auto* left = static_cast<const float*>(simt::SharedOfWarpgroup(
        64 * 16 * sizeof(float),
        [&](void* out) { ReadOperand<kFloat16>(a, kMajorA, 64, static_cast<float*>(out)); },
        index * 2 + 1));
    float a0[16], a1[16];
    std::memcpy(a0, left + row * 16, sizeof(a0));
    std::memcpy(a1, left + (row + 8) * 16, sizeof(a1));
    Multiply<kN>(to, a0, a1, OperandB<kN, kFloat16>(index, b, kMajorB), accumulate);
  });
}

// A's registers are read when the product runs: until then they may not change.
template <int kN, Major kMajorB, bool kFloat16 = false>
void WgmmaRS(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  const uint64_t index = simt::NextMatrixIndex();
  float* to = d;
  const uint32_t* from = a;
  simt::IssueMatrix([=] {
    uint32_t all[32][4];
    simt::GatherWarp(from, 16, all);
    float a0[16], a1[16];
    const int quad = simt::Lane() / 4 * 4;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) {
        const auto value = [&](int r) {
          const auto bits = static_cast<uint16_t>(all[quad + i][r] >> (16 * j));
          return kFloat16 ? F16ToF32(bits) : __bfloat162float({bits});
        };
        a0[2 * i + j] = value(0);
        a1[2 * i + j] = value(1);
        a0[2 * i + 8 + j] = value(2);
        a1[2 * i + 8 + j] = value(3);
      }
    }
    Multiply<kN>(to, a0, a1, OperandB<kN, kFloat16>(index, b, kMajorB), accumulate);
  });
}

}  // namespace fathom::kernels::cuda::ptx
