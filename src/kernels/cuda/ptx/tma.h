#pragma once
// The bulk tensor copy engine (TMA): global to shared, completing on an mbarrier, and back, in
// groups of the thread that asks.
#include <cuda.h>

#include <cstdint>

namespace fathom::kernels::cuda::ptx {

// L2 policies as createpolicy.fractional encodes them for a fraction of 1.
inline constexpr uint64_t kL2EvictNormal = 0x1000000000000000ull;
inline constexpr uint64_t kL2EvictFirst = 0x12f0000000000000ull;
inline constexpr uint64_t kL2EvictLast = 0x14f0000000000000ull;

__device__ __forceinline__ void TmaPrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Box at coordinates (c0 innermost). Boxes out of bounds arrive as zeros and count in full.
__device__ __forceinline__ void TmaLoad4(uint32_t destination, const CUtensorMap* map,
                                         uint32_t barrier, int c0, int c1, int c2, int c3,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

// A box from shared memory; elements out of bounds are not written. FenceProxyAsync by those who
// stored it comes first.
__device__ __forceinline__ void TmaStore4(const CUtensorMap* map, uint32_t source, int c0, int c1,
                                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void TmaStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until this thread's boxes have been read: their places may be written again, or be gone.
__device__ __forceinline__ void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Orders this thread's earlier shared-memory stores before later reads by wgmma or TMA.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fathom::kernels::cuda::ptx
