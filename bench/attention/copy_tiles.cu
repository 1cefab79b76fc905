#include <algorithm>

#include "copy_tiles.h"
#include "kernels/cuda/decode_schedule.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/sync.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/decode/shared.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fathom::bench {
namespace {

namespace cuda = kernels::cuda;
namespace ptx = kernels::cuda::ptx;
using cuda::CacheCode;

constexpr int kMaxSlots = 8;
constexpr int kMaxPlanes = 4;  // keys, values, and scales of each
constexpr int kMaxBoxes = 16;
constexpr int kSharedPerSm = 228 * 1024;
constexpr int kOtherShared = 1024 + kMaxSlots * 8;  // of a block: alignment, barriers

// What a token has in a plane, or, of scales, what a tile has.
struct Plane {
  cuda::PagedPlane at;
  cuda::MapShape shape;
};
struct Planes {
  Plane plane[kMaxPlanes];
  int count = 0;
};

Planes PlanesOf(const cuda::DecodeParams& params, int dim_qk, int dim_v) {
  constexpr int kTile = cuda::kDecodeTileTokens;
  const bool latent = dim_qk > dim_v;
  const bool quantised = params.code != CacheCode::kBf16;
  Planes planes;
  const auto add = [&](const cuda::PagedPlane& at, cuda::MapShape shape) {
    shape.num_pages = params.num_pages;
    shape.num_heads = params.num_kv_heads;
    planes.plane[planes.count++] = {at, shape};
  };
  if (latent && quantised) {  // a token is one record
    const int record =
        (dim_v + dim_v / cuda::kLatentScaleGroup * 4 + (dim_qk - dim_v) * 2) / 4;  // words
    add(params.plane[0], {.tokens = kTile,
                          .elements = record,
                          .box_tokens = kTile,
                          .box_elements = record,
                          .element_bytes = 4,
                          .swizzle_bytes = 0});
    return planes;
  }
  for (int i = 0; i < 2; ++i) {
    const int dim = latent && i == 1 ? dim_qk - dim_v : dim_v;
    const int element_bytes = quantised ? 1 : 2;
    const int row_bytes = std::min(dim * element_bytes, 128);  // of a box
    add(params.plane[i], {.tokens = kTile,
                          .elements = dim,
                          .box_tokens = kTile,
                          .box_elements = row_bytes / element_bytes,
                          .element_bytes = element_bytes,
                          .swizzle_bytes = row_bytes});
  }
  for (int i = 0; quantised && i < 2; ++i) {
    cuda::PagedPlane scales = params.scales[i];
    scales.token_stride_bytes = 16;  // of the only row: never used
    add(scales, {.tokens = 1,
                 .elements = kTile,
                 .box_tokens = 1,
                 .box_elements = kTile,
                 .element_bytes = 4,
                 .swizzle_bytes = 0});
  }
  return planes;
}

// A tile is `count` boxes, one a lane.
struct Boxes {
  int count = 0;
  int map[kMaxBoxes] = {};
  int element[kMaxBoxes] = {};  // first one
  int offset[kMaxBoxes] = {};   // in a slot, bytes
  int bytes = 0;                // of all
};

struct CopyParams {
  CUtensorMap maps[kMaxPlanes];
  Boxes boxes;
  int slots;
  int slot_bytes;
  uint32_t* arrived;
};

__global__ void CopyTilesKernel(const __grid_constant__ cuda::DecodeParams params,
                                const __grid_constant__ CopyParams copy) {
  const uint32_t base = ptx::SharedAddress(ptx::DynamicShared());
  const uint32_t ring = (base + 1023) & ~1023u;
  const uint32_t barriers = ring + copy.slots * copy.slot_bytes;
  const int lane = static_cast<int>(threadIdx.x);
  const int groups = cuda::DecodeGroups(params);
  const cuda::DecodePart part = params.parts[blockIdx.x / groups];
  const int kv_head = static_cast<int>(blockIdx.x) % groups / params.row_tiles;
  if (lane < copy.slots) ptx::MbarrierInit(barriers + lane * 8, 1);
  ptx::MbarrierInitFence();
  __syncwarp();
  const uint64_t policy = cuda::sm90::CachePolicy(params, part, copy.boxes.bytes);
  const bool copies = lane < copy.boxes.count;
  const CUtensorMap* map = &copy.maps[copies ? copy.boxes.map[lane] : 0];
  const int element = copies ? copy.boxes.element[lane] : 0;
  const uint32_t target = ring + (copies ? copy.boxes.offset[lane] : 0);

  int sequence = part.sequence;
  int tile = part.tile;
  int tiles = cuda::DecodeTiles(part.kv_tokens);
  int slot = 0;
  uint32_t phase = 0;
  uint32_t words = 0;
  for (int i = 0; i < part.num_tiles + copy.slots; ++i) {
    const uint32_t full = barriers + slot * 8;
    if (i >= copy.slots && i - copy.slots < part.num_tiles) {
      ptx::MbarrierWait(full, phase ^ 1);
      for (int at = lane * 4; copy.arrived != nullptr && at < copy.boxes.bytes; at += 128) {
        words ^= __float_as_uint(ptx::LoadSharedFloat(ring + slot * copy.slot_bytes + at));
      }
      __syncwarp();
    }
    if (i < part.num_tiles) {
      while (tile == tiles) {
        tile = 0;
        tiles = cuda::DecodeTiles(params.kv_lengths[++sequence]);
      }
      const int32_t page = params.page_table[sequence * params.page_table_stride + tile++];
      if (lane == 0) ptx::MbarrierExpectBytes(full, copy.boxes.bytes);
      __syncwarp();
      if (copies) {
        ptx::TmaLoad4(target + slot * copy.slot_bytes, map, full, element, 0, kv_head, page,
                      policy);
      }
    }
    if (++slot == copy.slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  const bool first_row_tile = static_cast<int>(blockIdx.x) % params.row_tiles == 0;
  if (copy.arrived != nullptr && first_row_tile) atomicXor(copy.arrived, words);
}

// A block for each page of a sequence: plain loads.
__global__ void XorTilesKernel(const __grid_constant__ cuda::DecodeParams params,
                               const __grid_constant__ Planes planes, uint32_t* result) {
  const int sequence = static_cast<int>(blockIdx.y);
  const auto tile = static_cast<int>(blockIdx.x);
  if (tile >= cuda::DecodeTiles(params.kv_lengths[sequence])) return;
  const int64_t page = params.page_table[sequence * params.page_table_stride + tile];
  uint32_t words = 0;
  for (int i = 0; i < planes.count; ++i) {
    const cuda::PagedPlane& at = planes.plane[i].at;
    const cuda::MapShape& shape = planes.plane[i].shape;
    const int row = shape.elements * shape.element_bytes / 4;  // words
    const int rows = static_cast<int>(shape.tokens) * shape.num_heads;
    for (int n = static_cast<int>(threadIdx.x); n < rows * row; n += static_cast<int>(blockDim.x)) {
      const int token = n / row % static_cast<int>(shape.tokens);
      const int head = n / row / static_cast<int>(shape.tokens);
      const auto* from = reinterpret_cast<const uint32_t*>(
          static_cast<const char*>(at.base) + page * at.page_stride_bytes +
          token * at.token_stride_bytes + head * at.head_stride_bytes);
      words ^= from[n % row];
    }
  }
  atomicXor(result, words);
}

}  // namespace

cudaError_t RunCopyTiles(const cuda::DecodeParams& params, int dim_qk, int dim_v,
                         const CopyTilesOptions& options, cudaStream_t stream) {
  const Planes planes = PlanesOf(params, dim_qk, dim_v);
  CopyParams copy = {};
  Boxes& boxes = copy.boxes;
  for (int i = 0; i < planes.count; ++i) {
    const cuda::MapShape& shape = planes.plane[i].shape;
    if (const cudaError_t status = cuda::MakeMap(planes.plane[i].at, shape, &copy.maps[i]);
        status != cudaSuccess) {
      return status;
    }
    for (int element = 0; element < shape.elements; element += shape.box_elements) {
      if (boxes.count == kMaxBoxes) return cudaErrorNotSupported;
      boxes.map[boxes.count] = i;
      boxes.element[boxes.count] = element;
      boxes.offset[boxes.count++] = boxes.bytes;
      boxes.bytes += shape.box_elements * shape.box_tokens * shape.element_bytes;
    }
  }
  copy.slot_bytes = (boxes.bytes + 1023) / 1024 * 1024;
  const int room = kSharedPerSm / options.blocks_per_sm - kOtherShared - 1024;  // a block's own KiB
  copy.slots = std::min({kMaxSlots, options.slots, room / copy.slot_bytes});
  copy.arrived = options.arrived;
  static const cudaError_t configured = cudaFuncSetAttribute(
      CopyTilesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedPerSm - 1024);
  if (configured != cudaSuccess) return configured;
  return cuda::LaunchKernel(CopyTilesKernel,
                            {.blocks = params.num_parts * cuda::DecodeGroups(params),
                             .threads = 32,
                             .shared_bytes = copy.slots * copy.slot_bytes + kOtherShared},
                            stream, params, copy);
}

cudaError_t RunXorTiles(const cuda::DecodeParams& params, int dim_qk, int dim_v, uint32_t* words,
                        cudaStream_t stream) {
  const Planes planes = PlanesOf(params, dim_qk, dim_v);
  const auto pages = static_cast<unsigned>(params.page_table_stride);
  XorTilesKernel<<<dim3(pages, static_cast<unsigned>(params.num_sequences)), 256, 0, stream>>>(
      params, planes, words);
  return cudaGetLastError();
}

}  // namespace fathom::bench
