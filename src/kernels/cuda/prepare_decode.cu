// One block turns lengths into the schedule of decode_schedule.h.
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/launch_kernel.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void PrepareDecodeKernel(
    const __grid_constant__ DecodeParams params) {
  using Scan = cub::BlockScan<int32_t, kThreads>;
  __shared__ typename Scan::TempStorage scratch[2];
  const int count = DecodeLineSize(params);
  const int32_t* lengths = DecodeLengths(params);
  int32_t* tiles = params.prefix;
  int32_t* segments = params.prefix + count + 1;

  int32_t tiles_before = 0;
  int32_t segments_before = 0;
  for (int base = 0; base < count; base += kThreads) {
    const int sequence = base + static_cast<int>(threadIdx.x);
    const int32_t kv_tokens = sequence < count ? lengths[sequence] : 0;
    int32_t tile_offset, tile_sum, segment_offset, segment_sum;
    Scan(scratch[0]).ExclusiveSum(DecodeTiles(kv_tokens), tile_offset, tile_sum);
    Scan(scratch[1])
        .ExclusiveSum(DecodeSegments(params.split, kv_tokens), segment_offset, segment_sum);
    if (sequence < count) {
      tiles[sequence] = tiles_before + tile_offset;
      segments[sequence] = segments_before + segment_offset;
    }
    tiles_before += tile_sum;
    segments_before += segment_sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    tiles[count] = tiles_before;
    segments[count] = segments_before;
  }
  __syncthreads();

  bool equal = true;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < count; sequence += kThreads) {
    equal = equal && tiles[sequence] == sequence * tiles[1];
  }
  equal = __syncthreads_and(equal) && tiles[count] == count * tiles[1];
  const int used = DecodeUsedParts(tiles[count], count, equal, params.num_parts);

  for (int sequence = static_cast<int>(threadIdx.x); sequence < count; sequence += kThreads) {
    params.merges[sequence] = MakeDecodeMerge(params.split, tiles, segments, count, used, sequence);
  }
  if (params.merge_inside) {
    for (int i = static_cast<int>(threadIdx.x); i < count * params.row_tiles; i += kThreads) {
      params.arrivals[i] = 0;
    }
  }
  for (int part = static_cast<int>(threadIdx.x); part < params.num_parts; part += kThreads) {
    DecodePart made = MakeDecodePart(params.split, tiles, segments, lengths, count, used, part);
    if (made.num_tiles > 0) {
      const int sequence = DecodeListAt(params, made.sequence, 0).sequence;
      made.query_begin = params.query_starts[sequence];
      made.query_tokens = params.query_starts[sequence + 1] - made.query_begin;
    }
    params.parts[part] = made;
  }
  __syncthreads();

  // The first page ids of each part travel with it: one dependent load less before its keys.
  for (int i = static_cast<int>(threadIdx.x); i < params.num_parts * kDecodePartPages;
       i += kThreads) {
    const DecodePart part = params.parts[i / kDecodePartPages];
    const int64_t first = int64_t{part.tile} * kDecodeTileTokens / params.page_tokens;
    const int64_t entry = first + i % kDecodePartPages;
    const int64_t pages = (int64_t{part.kv_tokens} + params.page_tokens - 1) / params.page_tokens;
    params.part_pages[i] = params.lists == nullptr && part.num_tiles > 0 && entry < pages
                               ? params.page_table[part.sequence * params.page_table_stride + entry]
                               : static_cast<int32_t>(params.num_pages);
  }
}

}  // namespace

cudaError_t PrepareDecode(const DecodeParams& params, cudaStream_t stream) {
  return LaunchKernel(PrepareDecodeKernel, {.threads = kThreads}, stream, params);
}

}  // namespace fathom::kernels::cuda
