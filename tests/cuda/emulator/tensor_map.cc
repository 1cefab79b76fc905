// Tensor maps as the emulated copy engine reads them.
#include "kernels/cuda/tensor_map.h"

namespace fathom::kernels::cuda {

cudaError_t MakeMap(const PagedPlane& plane, const MapShape& shape, CUtensorMap* map) {
  *map = {};
  map->base = static_cast<const uint8_t*>(plane.base);
  const int64_t extents[4] = {shape.elements, shape.tokens, shape.num_heads, shape.num_pages};
  const int64_t strides[4] = {shape.element_bytes, plane.token_stride_bytes,
                              plane.head_stride_bytes, plane.page_stride_bytes};
  const int box[4] = {shape.box_elements, shape.box_tokens, 1, 1};
  for (int i = 0; i < 4; ++i) {
    // What the driver's encoder refuses.
    if (i > 0 && (strides[i] % 16 != 0 || strides[i] <= 0)) return cudaErrorInvalidValue;
    if (box[i] > 256 || box[i] < 1) return cudaErrorInvalidValue;
    map->extents[i] = extents[i];
    map->strides[i] = strides[i];
    map->box[i] = box[i];
  }
  if (reinterpret_cast<uintptr_t>(plane.base) % 16 != 0) return cudaErrorInvalidValue;
  if (box[0] * shape.element_bytes % 16 != 0) return cudaErrorInvalidValue;
  map->element_bytes = shape.element_bytes;
  map->swizzle_bytes = shape.swizzle_bytes;
  return cudaSuccess;
}

}  // namespace fathom::kernels::cuda
