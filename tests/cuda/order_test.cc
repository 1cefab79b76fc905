// That races in emulated kernels are found, and what a barrier orders is not called one. Says
// nothing without ThreadSanitizer.
#include <gtest/gtest.h>

#include "harness.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"

#ifdef FATHOM_SIMT_WATCHED
namespace {
bool g_counting = false;
int g_reports = 0;
}  // namespace

// The sanitizer asks this whether a report is to be left out; it counts them for the tests below
// and leaves all others in.
namespace __tsan {
struct ReportDesc;
FATHOM_SIMT_UNWATCHED bool OnReport(const ReportDesc* /*report*/, bool suppressed) {
  if (!g_counting) return suppressed;
  ++g_reports;
  return true;
}
}  // namespace __tsan

namespace fathom {
namespace {

namespace ptx = kernels::cuda::ptx;

volatile float g_read[2][64];
// So that a load is not optimised away.
void Use(float value) { g_read[blockIdx.x][threadIdx.x] = value; }

// Reports while two warps and two blocks run `kernel`.
// (one an address: each test below has addresses of its own)
int Races(const std::function<void(uint32_t shared)>& kernel) {
  g_reports = 0;
  g_counting = true;
  simt::RunGrid({2}, 64, 1024, 2, [&] { kernel(ptx::SharedAddress(ptx::DynamicShared())); });
  g_counting = false;
  return g_reports;
}

TEST(EmulatorOrder, NamedBarriersOrderThoseWhoMeet) {
  const auto handover = [](bool arrive, bool wait) {
    return Races([=](uint32_t shared) {
      if (threadIdx.x < 32) {
        ptx::StoreShared(shared + threadIdx.x * 4, 1.f);
        if (arrive) ptx::BarrierArrive(1, 64);
      } else {
        if (!arrive) ptx::BarrierArrive(1, 64);
        if (wait) ptx::BarrierSync(1, arrive ? 64 : 32);
        Use(ptx::LoadSharedFloat(shared + (threadIdx.x - 32) * 4));
      }
    });
  };
  EXPECT_EQ(handover(true, true), 0);
  EXPECT_GT(handover(false, false), 0);
}

TEST(EmulatorOrder, ShufflesOrderNothing) {
  const auto exchange = [](bool sync) {
    return Races([=](uint32_t shared) {
      if (threadIdx.x >= 32) return;
      ptx::StoreShared(shared + threadIdx.x * 4, 1.f);
      __shfl_xor_sync(~0u, 1, 1);
      if (sync) __syncwarp();
      Use(ptx::LoadSharedFloat(shared + (threadIdx.x ^ 1) * 4));
    });
  };
  EXPECT_EQ(exchange(true), 0);
  EXPECT_GT(exchange(false), 0);
}

TEST(EmulatorOrder, CopiesAreReadBehindTheirBarrier) {
  alignas(16) static float source[32] = {};
  const CUtensorMap map = cuda_test::MapOfRow(source);
  const auto load = [&map](bool wait) {
    return Races([&map, wait](uint32_t shared) {
      const uint32_t barrier = shared + 512;
      if (threadIdx.x == 0) ptx::MbarrierInit(barrier, 1);
      __syncthreads();
      if (threadIdx.x == 0) {
        ptx::MbarrierExpectBytes(barrier, 128);
        ptx::TmaLoad4(shared + 128, &map, barrier, 0, 0, 0, 0, ptx::kL2EvictNormal);
      }
      if (wait || threadIdx.x < 32) ptx::MbarrierWait(barrier, 0);
      Use(ptx::LoadSharedFloat(shared + 128 + threadIdx.x % 32 * 4));
    });
  };
  EXPECT_EQ(load(true), 0);
  EXPECT_GT(load(false), 0);
}

TEST(EmulatorOrder, GlobalMemoryBetweenBlocks) {
  const auto sum = [](bool meet) {
    static float global[2];
    static uint32_t word;
    word = 0;
    return Races([=](uint32_t) {
      if (threadIdx.x != 0) return;
      global[blockIdx.x] = 1;
      if (meet) {
        const uint32_t before = ptx::Arrive(&word, blockIdx.x == 0, 2);
        ptx::WaitForArrivals(&word, before);
      }
      Use(__ldcg(&global[1 - blockIdx.x]));
    });
  };
  EXPECT_EQ(sum(true), 0);
  EXPECT_GT(sum(false), 0);
}

}  // namespace
}  // namespace fathom
#endif
