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
constexpr int kSharedPerSm = 228 * 1024;
constexpr int kOtherShared = 1024 + kMaxSlots * 8;  // of a block: alignment, barriers
constexpr int kMaxMaps = 4;                         // keys, values, and scales of each
constexpr int kMaxBoxes = 16;

// A tile is `boxes` boxes, one a lane.
struct Boxes {
  int count = 0;
  int map[kMaxBoxes] = {};
  int element[kMaxBoxes] = {};  // first one
  int offset[kMaxBoxes] = {};   // in a slot, bytes
  int bytes = 0;                // of all
};

struct CopyParams {
  CUtensorMap maps[kMaxMaps];
  Boxes boxes;
  int slots;
  int slot_bytes;
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
  for (int i = 0; i < part.num_tiles + copy.slots; ++i) {
    const uint32_t full = barriers + slot * 8;
    if (i >= copy.slots && i - copy.slots < part.num_tiles) ptx::MbarrierWait(full, phase ^ 1);
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
}

}  // namespace

cudaError_t RunCopyTiles(const cuda::DecodeParams& params, int dim_qk, int dim_v, int blocks_per_sm,
                         cudaStream_t stream) {
  constexpr int kTile = cuda::kDecodeTileTokens;
  const bool latent = dim_qk > dim_v;
  const bool quantised = params.code != CacheCode::kBf16;
  CopyParams copy = {};
  Boxes& boxes = copy.boxes;
  int maps = 0;
  cudaError_t status = cudaSuccess;
  const auto add = [&](const cuda::PagedPlane& plane, const cuda::MapShape& shape) {
    if (status == cudaSuccess) status = cuda::MakeMap(plane, shape, &copy.maps[maps]);
    for (int element = 0; element < shape.elements; element += shape.box_elements) {
      boxes.map[boxes.count] = maps;
      boxes.element[boxes.count] = element;
      boxes.offset[boxes.count++] = boxes.bytes;
      boxes.bytes += shape.box_elements * shape.box_tokens * shape.element_bytes;
    }
    ++maps;
  };
  cuda::MapShape shape = {.num_pages = params.num_pages,
                          .num_heads = params.num_kv_heads,
                          .tokens = kTile,
                          .box_tokens = kTile};
  if (latent && quantised) {  // a token is one record
    shape.elements = shape.box_elements =
        (dim_v + dim_v / cuda::kLatentScaleGroup * 4 + (dim_qk - dim_v) * 2) / 4;
    shape.element_bytes = 4;
    shape.swizzle_bytes = 0;
    add(params.plane[0], shape);
  } else {
    for (int i = 0; i < 2; ++i) {
      shape.elements = !latent ? dim_v : i == 0 ? dim_v : dim_qk - dim_v;
      shape.element_bytes = quantised ? 1 : 2;
      const int row = std::min(shape.elements * shape.element_bytes, 128);
      shape.box_elements = row / shape.element_bytes;
      shape.swizzle_bytes = row;
      add(params.plane[i], shape);
    }
    for (int i = 0; quantised && i < 2; ++i) {
      cuda::PagedPlane scales = params.scales[i];
      scales.token_stride_bytes = 16;  // of the only row: never used
      add(scales, {.num_pages = params.num_pages,
                   .num_heads = params.num_kv_heads,
                   .tokens = 1,
                   .elements = kTile,
                   .box_tokens = 1,
                   .box_elements = kTile,
                   .element_bytes = 4,
                   .swizzle_bytes = 0});
    }
  }
  if (status != cudaSuccess) return status;
  copy.slot_bytes = (boxes.bytes + 1023) / 1024 * 1024;
  const int room = kSharedPerSm / blocks_per_sm - kOtherShared - 1024;  // which each block costs
  copy.slots = std::min(kMaxSlots, room / copy.slot_bytes);
  static const cudaError_t configured = cudaFuncSetAttribute(
      CopyTilesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedPerSm - 1024);
  if (configured != cudaSuccess) return configured;
  return cuda::LaunchKernel(CopyTilesKernel,
                            {.blocks = params.num_parts * cuda::DecodeGroups(params),
                             .threads = 32,
                             .shared_bytes = copy.slots * copy.slot_bytes + kOtherShared},
                            stream, params, copy);
}

}  // namespace fathom::bench
