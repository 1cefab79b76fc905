#pragma once
// Named barriers, programmatic dependent launch, memory order, and small arithmetic.
#include <cuda_bf16.h>

#include <cstdint>

namespace fathom::kernels::cuda::ptx {

// Barrier among `threads` threads of the block; id 0 is __syncthreads.
__device__ __forceinline__ void BarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void BarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Lets the next kernel of the stream start, when it was launched as a programmatic dependent.
__device__ __forceinline__ void LaunchDependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Waits for the previous kernel of the stream and its memory; returns at once otherwise.
__device__ __forceinline__ void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Moves registers between the warpgroups of a block: called by all warps of one.
template <int kCount>
__device__ __forceinline__ void RegistersIncrease() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void RegistersDecrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Loads that bypass L1 and stay where they are written, also behind WaitForPreviousKernel: the
// compiler may move the __ldcg intrinsics across it.
__device__ __forceinline__ float2 LoadL2(const float2* from) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 LoadL2(const float4* from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to a pair of bf16, the first in the low half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Stores 8x8 matrices of 16-bit elements transposed: lane i's address is a row of 16 bytes.
__device__ __forceinline__ void StoreMatrixTransposed(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(a), "r"(b)
               : "memory");
}
__device__ __forceinline__ void StoreMatrixTransposed(uint32_t address, uint32_t a, uint32_t b,
                                                      uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

}  // namespace fathom::kernels::cuda::ptx
