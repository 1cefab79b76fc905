// One block lists the query tiles of a step, those with the most keys first: a counting sort.
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/prefill_schedule.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBuckets = 2048;  // of visited key tiles, several a bucket when there are more

__global__ __launch_bounds__(kThreads) void PreparePrefillKernel(
    const __grid_constant__ PrefillParams params, int rows, int bucket_tiles) {
  using Scan = cub::BlockScan<int32_t, kThreads>;
  __shared__ typename Scan::TempStorage scratch;
  __shared__ int32_t starts[kBuckets];  // counts, then where the next tile of a bucket goes
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kThreads) starts[i] = 0;
  __syncthreads();
  for (int pass = 0; pass < 2; ++pass) {
    for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
      const int queries = params.query_starts[sequence + 1] - params.query_starts[sequence];
      const int kv_tokens = params.kv_lengths[sequence];
      const int position = PrefillFirstPosition(params, sequence, queries);
      for (int row = static_cast<int>(threadIdx.x) * rows; row < queries; row += kThreads * rows) {
        const int bucket =
            kBuckets - 1 -
            min(kBuckets - 1,
                PrefillTilesOf(params, kv_tokens, position, queries, row, rows).count /
                    bucket_tiles);
        const int place = atomicAdd(&starts[bucket], 1);
        if (pass == 1) params.tiles[place] = {sequence, row};
      }
    }
    __syncthreads();
    if (pass == 1) break;
    constexpr int kEach = kBuckets / kThreads;
    int32_t counts[kEach];
    int32_t total;
    for (int i = 0; i < kEach; ++i) counts[i] = starts[threadIdx.x * kEach + i];
    Scan(scratch).ExclusiveSum(counts, counts, total);
    for (int i = 0; i < kEach; ++i) starts[threadIdx.x * kEach + i] = counts[i];
    if (threadIdx.x == 0) *params.num_tiles = total;
    __syncthreads();
  }
}

}  // namespace

cudaError_t PreparePrefill(const PrefillParams& params, int rows, int max_kv_tokens,
                           cudaStream_t stream) {
  const int bucket_tiles = max_kv_tokens / kPrefillTileKeys / (kBuckets - 1) + 1;
  return LaunchKernel(PreparePrefillKernel, {.threads = kThreads}, stream, params, rows,
                      bucket_tiles);
}

}  // namespace fathom::kernels::cuda
