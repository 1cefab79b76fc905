#pragma once
// Emulated src/kernels/cuda/ptx/sync.h.
#include <cuda_bf16.h>

#include "kernels/cuda/ptx/mbarrier.h"

namespace fathom::kernels::cuda::ptx {

inline void BarrierSync(int id, int threads) { simt::BarrierSync(id, threads); }
inline void BarrierArrive(int id, int threads) { simt::BarrierArrive(id, threads); }
inline void LaunchDependents() {}
inline void WaitForPreviousKernel() {}
template <int kCount>
void RegistersIncrease() {}
template <int kCount>
void RegistersDecrease() {}

FATHOM_SIMT_UNWATCHED inline uint32_t GridWord(const uint32_t* word) { return *word; }
inline constexpr uint32_t kAllArrived = 1;
inline uint32_t Arrive(uint32_t* word, bool first, int count) {
  const uint32_t before = GridWord(word);
  atomicAdd(word, first ? 0x80000000u - static_cast<uint32_t>(count - 1) : 1);
  simt::Moved();
  return (before ^ GridWord(word)) >> 31 != 0 ? kAllArrived : before & 0x80000000u;
}
inline void WaitForArrivals(const uint32_t* word, uint32_t ticket) {
  if (ticket == kAllArrived) return;
  simt::WaitUntil("the blocks of a sequence", [=] { return (ticket ^ GridWord(word)) >> 31 != 0; });
  simt::Acquire(word);
}
inline bool ElectOne() { return threadIdx.x % 32 == 0; }

inline float LoadL2(const float* from) { return *from; }
inline float2 LoadL2(const float2* from) { return *from; }
inline float4 LoadL2(const float4* from) { return *from; }

inline void PrefetchL2(const void*) {}
inline void KeepUnknown(int&) {}

inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
inline float Reciprocal(float x) { return 1 / x; }

inline uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(__float2bfloat16_rn(high).bits) << 16 |
         __float2bfloat16_rn(low).bits;
}
inline float LowBf16(uint32_t pair) { return __bfloat162float({static_cast<uint16_t>(pair)}); }
inline float HighBf16(uint32_t pair) {
  return __bfloat162float({static_cast<uint16_t>(pair >> 16)});
}
// Products and differences of bf16 pairs, rounded once.
inline uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  return PackBf16(LowBf16(a) * LowBf16(b), HighBf16(a) * HighBf16(b));
}
inline uint32_t SubBf16x2(uint32_t a, uint32_t b) {
  return PackBf16(LowBf16(a) - LowBf16(b), HighBf16(a) - HighBf16(b));
}

template <class T>
void StoreSharedAs(uint32_t address, T v) {
  std::memcpy(simt::SharedAt(address, sizeof(T)), &v, sizeof(T));
  simt::NoteStore(address, sizeof(T));
}
template <class T>
T LoadSharedAs(uint32_t address) {
  T v;
  std::memcpy(&v, simt::SharedAt(address, sizeof(T)), sizeof(T));
  return v;
}
inline void StoreGlobal(void* to, uint4 v) { *static_cast<uint4*>(to) = v; }
inline void StoreGlobal(void* to, float4 v) { *static_cast<float4*>(to) = v; }
inline void StoreShared(uint32_t address, uint4 v) { StoreSharedAs(address, v); }
inline void StoreShared(uint32_t address, uint2 v) { StoreSharedAs(address, v); }
inline void StoreShared(uint32_t address, float4 v) { StoreSharedAs(address, v); }
inline void StoreShared(uint32_t address, uint32_t v) { StoreSharedAs(address, v); }
inline void StoreShared(uint32_t address, float v) { StoreSharedAs(address, v); }
inline uint2 LoadSharedPair(uint32_t address) { return LoadSharedAs<uint2>(address); }
inline uint4 LoadSharedQuad(uint32_t address) { return LoadSharedAs<uint4>(address); }
inline float4 LoadSharedFloat4(uint32_t address) { return LoadSharedAs<float4>(address); }
inline float2 LoadSharedFloat2(uint32_t address) { return LoadSharedAs<float2>(address); }
inline float LoadSharedFloat(uint32_t address) { return LoadSharedAs<float>(address); }
inline int LoadSharedInt(uint32_t address) { return LoadSharedAs<int>(address); }

// Matrix i's row r is at the address of lane 8i + r; lane l holds row l / 4, elements
// 2(l % 4) + {0, 1}; transposed: column l / 4.
template <int kMatrices>
void MoveMatrices(uint32_t address, uint32_t (&value)[kMatrices], bool store, bool transposed) {
  uint32_t addresses[32];
  simt::GatherWarp(&address, 4, addresses);
  const int lane = simt::Lane();
  for (int m = 0; m < kMatrices; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int a = lane / 4;
      const int b = lane % 4 * 2 + half;
      const int row = transposed ? b : a;
      const int column = transposed ? a : b;
      uint8_t* at = simt::SharedAt(addresses[m * 8 + row], 16) + column * 2;
      uint16_t bits = static_cast<uint16_t>(value[m] >> (16 * half));
      if (store) {
        std::memcpy(at, &bits, 2);
        simt::NoteStore(addresses[m * 8 + row] + static_cast<uint32_t>(column) * 2, 2);
      } else {
        std::memcpy(&bits, at, 2);
        value[m] = half == 0 ? bits : (value[m] & 0xffff) | static_cast<uint32_t>(bits) << 16;
      }
    }
  }
  simt::GatherWarp(&address, 4, addresses);  // no lane goes on before all have moved theirs
}
inline void StoreMatrixTransposed(uint32_t address, uint32_t a, uint32_t b) {
  uint32_t v[2] = {a, b};
  MoveMatrices(address, v, true, true);
}
inline void StoreMatrixTransposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                  uint32_t d) {
  uint32_t v[4] = {a, b, c, d};
  MoveMatrices(address, v, true, true);
}
inline void StoreMatrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t v[4] = {a, b, c, d};
  MoveMatrices(address, v, true, false);
}
inline void LoadMatrix(uint32_t address, uint32_t (&v)[4]) {
  MoveMatrices(address, v, false, false);
}
inline void LoadMatrixTransposed(uint32_t address, uint32_t (&v)[4]) {
  MoveMatrices(address, v, false, true);
}

}  // namespace fathom::kernels::cuda::ptx
