#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda {

// A plane [num_pages, num_heads, tokens, elements] and the boxes of it that are copied.
struct MapShape {
  int64_t num_pages = 0;
  int num_heads = 0;
  int64_t tokens = 0;
  int elements = 0;
  int box_tokens = 0;
  int box_elements = 64;
  int element_bytes = 2;    // 1: any byte; 2: bf16; 4: f32
  int swizzle_bytes = 128;  // 64; 0: none
};

// A TMA descriptor. Coordinates: (element, token, head, page).
cudaError_t MakeMap(const PagedPlane& plane, const MapShape& shape, CUtensorMap* map);

// Of a bf16 plane whose boxes are box_tokens x 64 elements, 128-byte swizzled.
inline cudaError_t MakePlaneMap(const PagedPlane& plane, int64_t num_pages, int num_heads,
                                int64_t page_tokens, int dim, int box_tokens, CUtensorMap* map) {
  return MakeMap(plane,
                 {.num_pages = num_pages,
                  .num_heads = num_heads,
                  .tokens = page_tokens,
                  .elements = dim,
                  .box_tokens = box_tokens},
                 map);
}

}  // namespace fathom::kernels::cuda
