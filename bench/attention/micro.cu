#include <algorithm>
#include <numeric>
#include <random>

#include "cost/shared_banks.h"
#include "device.h"
#include "kernels/cuda/swizzle.h"
#include "micro.h"

namespace fathom::bench {
namespace {

constexpr int kWarps = 8;
constexpr int kRounds = 256;
constexpr int kLoads = 8;  // in flight, of a round

// Each lane loads kBytes (4 or 16) from its own offset, over and over.
template <int kBytes>
__global__ void SharedKernel(const uint32_t* offsets, int64_t* clocks, uint32_t* sink) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t at =
      static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + offsets[threadIdx.x % 32];
  uint32_t sum = 0;
  __syncthreads();
  const int64_t begin = clock64();
  for (int round = 0; round < kRounds; ++round) {
    uint32_t x[kLoads][4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (kBytes == 4) {
        asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(x[i][0]) : "r"(at));
      } else {
        asm volatile("ld.volatile.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                     : "r"(at));
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum ^= x[i][0];
  }
  __syncthreads();
  if (threadIdx.x == 0) *clocks = clock64() - begin;
  if (sum == 0x12345678) *sink = sum;
}

// A warp a run: 16 bytes a lane and turn.
__global__ void GatherKernel(const uint4* data, const int64_t* starts, int64_t runs,
                             int words_per_run, uint32_t* sink) {
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t sum = 0;
  // Short runs share a warp.
  const int lanes = min(words_per_run, 32);
  const int at_once = 32 / lanes;
  for (int64_t first = (int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32) * at_once;
       first < runs; first += warps * at_once) {
    const int64_t run = first + lane / lanes;
    if (run >= runs) continue;
    const uint4* from = data + starts[run];
#pragma unroll 4
    for (int i = lane % lanes; i < words_per_run; i += lanes) {
      const uint4 v = __ldg(from + i);
      sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (sum == 0x12345678) *sink = sum;
}

template <int kBytes>
double MeasureShared(const std::vector<uint32_t>& offsets) {
  const Buffer device(offsets);
  const Buffer clocks(int64_t{8});
  const Buffer sink(int64_t{4});
  constexpr int kMemory = 32768;
  for (int i = 0; i < 2; ++i) {  // the first run loads the module
    SharedKernel<kBytes><<<1, kWarps * 32, kMemory>>>(device.As<uint32_t>(), clocks.As<int64_t>(),
                                                      sink.As<uint32_t>());
    CheckCuda(cudaDeviceSynchronize(), "shared memory benchmark");
  }
  return static_cast<double>(clocks.Read<int64_t>()[0]) / (kWarps * kRounds * kLoads);
}

}  // namespace

std::vector<StrideRow> MeasureStrides() {
  std::vector<StrideRow> rows;
  for (const uint32_t stride : {4, 8, 16, 20, 64, 128, 132}) {
    std::vector<uint32_t> offsets(32);
    for (uint32_t lane = 0; lane < 32; ++lane) offsets[lane] = lane * stride;
    rows.push_back({"4 bytes a lane, " + std::to_string(stride) + " bytes apart",
                    MeasureShared<4>(offsets), cost::CountWavefronts(offsets, 4).count});
  }
  // Operand pieces: 8 rows of 128 bytes, the same 16-byte column of each, four columns.
  for (const bool swizzled : {false, true}) {
    std::vector<uint32_t> offsets(32);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t row = lane % 8;
      const uint32_t chunk = lane / 8;
      offsets[lane] = swizzled ? kernels::cuda::SwizzledOffset(row, chunk)
                               : row * kernels::cuda::kSwizzleRowBytes + chunk * 16;
    }
    rows.push_back({std::string("16 bytes a lane, 8 rows of 128 bytes, ") +
                        (swizzled ? "swizzled" : "unswizzled"),
                    MeasureShared<16>(offsets), cost::CountWavefronts(offsets, 16).count});
  }
  return rows;
}

std::vector<GatherRow> MeasureGathers(int repeats) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // read
  constexpr int64_t kPool = int64_t{1} << 30;     // from
  constexpr int kToken = 2048;                    // keys of 8 heads of 128, bf16
  const Buffer data(kPool);
  data.Fill(1);
  const Buffer sink(int64_t{4});
  struct Pattern {
    const char* what;
    int64_t run_bytes;
    bool ordered;
  };
  std::vector<GatherRow> rows;
  for (const Pattern& p : {Pattern{"contiguous", 64 * kToken, true},
                           {"pages of 64 tokens anywhere", 64 * kToken, false},
                           {"pages of 16 tokens anywhere", 16 * kToken, false},
                           {"tokens anywhere (8 heads)", kToken, false},
                           {"tokens of one head anywhere", kToken / 8, false},
                           {"64 bytes anywhere", 64, false},
                           {"32 bytes anywhere", 32, false}}) {
    std::vector<int64_t> starts(static_cast<size_t>(kPool / p.run_bytes));
    std::iota(starts.begin(), starts.end(), 0);
    if (!p.ordered) std::shuffle(starts.begin(), starts.end(), std::mt19937_64(1));
    starts.resize(static_cast<size_t>(kBytes / p.run_bytes));
    // Long runs are read by several warps, a token each.
    const int64_t piece = std::min<int64_t>(p.run_bytes, kToken);
    std::vector<int64_t> pieces;
    for (const int64_t start : starts) {
      for (int64_t at = 0; at < p.run_bytes; at += piece) {
        pieces.push_back((start * p.run_bytes + at) / 16);
      }
    }
    const Buffer device(pieces);
    const auto runs = static_cast<int64_t>(pieces.size());
    const double us = TimeCold(
        [&](cudaStream_t stream) {
          GatherKernel<<<132 * 16, 128, 0, stream>>>(data.As<uint4>(), device.As<int64_t>(), runs,
                                                     static_cast<int>(piece / 16),
                                                     sink.As<uint32_t>());
        },
        repeats, L2::kClean);
    rows.push_back({p.what, p.run_bytes, us, static_cast<double>(kBytes) / us * 1e-3});
  }
  return rows;
}

}  // namespace fathom::bench
