// How sequences' keys lie in the parts of MLA prefill, and the gathering of a part's latents.
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/launch_kernel.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kPrepareThreads = 256;
constexpr int kGatherWarps = 8;
constexpr int kChunk = 16;  // bytes of one load

__global__ __launch_bounds__(kPrepareThreads) void PrepareMlaPartsKernel(
    const __grid_constant__ MlaPrefillParams params) {
  using Scan = cub::BlockScan<int32_t, kPrepareThreads>;
  __shared__ typename Scan::TempStorage scratch;
  const int count = params.num_sequences;
  int32_t before = 0;
  for (int base = 0; base < count; base += kPrepareThreads) {
    const int sequence = base + static_cast<int>(threadIdx.x);
    int32_t offset, sum;
    Scan(scratch).ExclusiveSum(sequence < count ? params.kv_lengths[sequence] : 0, offset, sum);
    if (sequence < count) params.line[sequence] = before + offset;
    before += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) params.line[count] = before;
  __syncthreads();
  const int64_t pieces = int64_t{params.num_parts} * count;
  for (int64_t i = threadIdx.x; i < pieces; i += kPrepareThreads) {
    const auto sequence = static_cast<int>(i % count);
    const int64_t part_begin = i / count * params.part_keys;
    const int64_t first = params.line[sequence];
    const int64_t last = params.line[sequence + 1];
    const int64_t begin = max(first, part_begin);
    const int64_t end = min(last, part_begin + params.part_keys);
    const bool some = begin < end;
    params.piece_starts[i] = some ? static_cast<int32_t>(begin - part_begin) : 0;
    params.piece_lengths[i] = some ? static_cast<int32_t>(end - begin) : 0;
    params.causal_lengths[i] = some ? static_cast<int32_t>(last - begin) : 0;
  }
}

// A warp a key. Rows behind the line's end stay as they are: nothing is made of them.
__global__ __launch_bounds__(kGatherWarps * 32) void GatherLatentsKernel(
    const __grid_constant__ MlaPrefillParams params, int part) {
  const int row = static_cast<int>(blockIdx.x) * kGatherWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t at = int64_t{part} * params.part_keys + row;
  if (row >= params.part_keys || at >= params.line[params.num_sequences]) return;
  const int sequence =
      DecodeSequenceAt(params.line, params.num_sequences, static_cast<int32_t>(at));
  const int token = static_cast<int>(at) - params.line[sequence];
  const int64_t page =
      params.page_table[sequence * params.page_table_stride + token / params.page_tokens];
  const auto source = [&](const PagedPlane& plane) {
    return static_cast<const char*>(plane.base) + page * plane.page_stride_bytes +
           token % params.page_tokens * plane.token_stride_bytes + lane * kChunk;
  };
  constexpr int kLatentBytes = kMlaLatent * 2;
  constexpr int kRopeBytes = kMlaRope * 2;
  constexpr int kLoads = kLatentBytes / (32 * kChunk);
  static_assert(kLatentBytes % (32 * kChunk) == 0);
  uint4 latent[kLoads];
  uint4 rope;
  const char* from = source(params.plane[0]);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    latent[i] = __ldg(reinterpret_cast<const uint4*>(from + i * 32 * kChunk));
  }
  const bool has_rope = lane < kRopeBytes / kChunk;
  if (has_rope) rope = __ldg(reinterpret_cast<const uint4*>(source(params.plane[1])));
  char* to = static_cast<char*>(params.latents) + int64_t{row} * kLatentBytes + lane * kChunk;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) *reinterpret_cast<uint4*>(to + i * 32 * kChunk) = latent[i];
  if (has_rope) {
    *reinterpret_cast<uint4*>(static_cast<char*>(params.k_pe) + int64_t{row} * kRopeBytes +
                              lane * kChunk) = rope;
  }
}

}  // namespace

cudaError_t PrepareMlaParts(const MlaPrefillParams& params, cudaStream_t stream) {
  return LaunchKernel(PrepareMlaPartsKernel, {.threads = kPrepareThreads}, stream, params);
}

cudaError_t GatherLatents(const MlaPrefillParams& params, int part, cudaStream_t stream) {
  return LaunchKernel(GatherLatentsKernel,
                      {.blocks = (params.part_keys + kGatherWarps - 1) / kGatherWarps,
                       .threads = kGatherWarps * 32},
                      stream, params, part);
}

}  // namespace fathom::kernels::cuda
