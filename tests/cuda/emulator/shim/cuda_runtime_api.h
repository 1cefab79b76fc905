#pragma once
// The part of the CUDA runtime that the kernels and their launchers use, on simt.h.
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) alignas(n)

using dim3 = fathom::simt::Dim3;
using cudaStream_t = void*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801 };
inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess ? "success" : "failed";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  *data = static_cast<T*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* data, int byte, size_t bytes) {
  std::memset(data, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __int_as_float(int x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
inline int __float_as_int(float x) {
  int i;
  std::memcpy(&i, &x, 4);
  return i;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t all = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(all >> ((selector >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
  }
  return out;
}

inline int __float2int_rn(float x) {  // NaN: 0; beyond integers: the last one
  constexpr float kBeyond = 2147483648.F;
  if (std::isnan(x)) return 0;
  if (std::abs(x) >= kBeyond) return x > 0 ? 2147483647 : -2147483647 - 1;
  return static_cast<int>(std::nearbyint(x));
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  T all[32];
  fathom::simt::GatherWarp(&value, sizeof(T), all);
  return all[lane & 31];
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  T all[32];
  fathom::simt::GatherWarp(&value, sizeof(T), all);
  return all[(fathom::simt::Lane() ^ mask) & 31];
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  T all[32];
  fathom::simt::GatherWarp(&value, sizeof(T), all);
  return fathom::simt::Lane() < delta ? value : all[fathom::simt::Lane() - delta];
}
inline unsigned __ballot_sync(unsigned, bool value) {
  bool all[32];
  fathom::simt::GatherWarp(&value, 1, all);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= all[i] ? 1u << i : 0u;
  return bits;
}
inline int __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp(unsigned = ~0u) { fathom::simt::SyncWarp(); }
inline void __syncthreads() { fathom::simt::BarrierSync(0, static_cast<int>(blockDim.x)); }
inline int __syncthreads_and(bool value) {
  bool all[1024];
  fathom::simt::GatherBlock(&value, 1, all);
  for (unsigned i = 0; i < blockDim.x; ++i) value = value && all[i];
  return value;
}
template <class T>
FATHOM_SIMT_UNWATCHED T atomicAdd(T* at, T value) {
  fathom::simt::Acquire(at);
  const T old = *at;
  *at += value;
  fathom::simt::Release(at);
  return old;
}
FATHOM_SIMT_UNWATCHED inline float2 atomicAdd(float2* at, float2 v) {
  fathom::simt::Acquire(at);
  const float2 old = *at;
  at->x += v.x, at->y += v.y;
  fathom::simt::Release(at);
  return old;
}
inline void __threadfence() {}
[[noreturn]] inline void __trap() { fathom::simt::Fail("trap"); }

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
template <class F>
cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) {
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    int cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               const A&... arguments) {
  unsigned together = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeCooperative) together = config->gridDim.x;
  }
  fathom::simt::RunGrid(config->gridDim, config->blockDim.x, config->dynamicSmemBytes, together,
                        [&] { kernel(arguments...); });
  return cudaSuccess;
}
