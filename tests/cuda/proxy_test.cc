// That the emulator tells ordinary stores from what copies and matrix products know of.
#include <gtest/gtest.h>

#include "harness.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"

namespace fathom {
namespace {

namespace ptx = kernels::cuda::ptx;

alignas(16) float g_memory[32] = {};

// A warp stores 128 bytes, maybe with a fence; then its first lane lets `use` have them.
void StoreAndUse(bool fence, const std::function<void(uint32_t shared)>& use) {
  simt::RunGrid({1}, 128, 16384, 1, [&] {
    const uint32_t shared = (ptx::SharedAddress(ptx::DynamicShared()) + 1023) & ~1023u;
    if (threadIdx.x < 32) ptx::StoreShared(shared + threadIdx.x * 4, 1.f);
    if (fence) ptx::FenceProxyAsync();
    __syncthreads();
    use(shared);
  });
}

void Write(uint32_t shared) {
  static const CUtensorMap map = cuda_test::MapOfRow(g_memory);
  if (threadIdx.x != 0) return;
  ptx::TmaStore4(&map, shared, 0, 0, 0, 0);
  ptx::TmaStoreCommit();
  ptx::TmaStoreWaitRead();
}

void Overwrite(uint32_t shared) {
  static const CUtensorMap map = cuda_test::MapOfRow(g_memory);
  const uint32_t barrier = shared + 8192;
  if (threadIdx.x == 0) {
    ptx::MbarrierInit(barrier, 1);
    ptx::MbarrierExpectBytes(barrier, 128);
    ptx::TmaLoad4(shared, &map, barrier, 0, 0, 0, 0, ptx::kL2EvictNormal);
  }
  __syncthreads();
  ptx::MbarrierWait(barrier, 0);
}

void Multiply(uint32_t shared) {
  float sums[4];
  ptx::WgmmaSS<8, ptx::Major::kK, ptx::Major::kK>(sums, ptx::Descriptor(shared),
                                                  ptx::Descriptor(shared), false);
  ptx::WgmmaCommit();
  ptx::WgmmaWait<0>();
}

TEST(EmulatorProxies, BehindAFenceStoresAreSeen) {
  for (float& x : g_memory) x = 0;
  StoreAndUse(true, Write);
  for (const float x : g_memory) EXPECT_EQ(x, 1.f);
  StoreAndUse(true, Overwrite);
  StoreAndUse(true, Multiply);
}

TEST(EmulatorProxiesDeathTest, WithoutOneTheyFail) {
  EXPECT_DEATH(StoreAndUse(false, Write), "copy of shared address .* without a proxy fence");
  EXPECT_DEATH(StoreAndUse(false, Overwrite), "copy of shared address .* without a proxy fence");
  EXPECT_DEATH(StoreAndUse(false, Multiply), "matrix operand .* without a proxy fence");
}

}  // namespace
}  // namespace fathom
