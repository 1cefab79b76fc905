#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/decode_params.h"

namespace fathom::kernels::cuda {

// A TMA descriptor of a bf16 plane [num_pages, num_heads, page_tokens, dim] whose boxes are
// box_tokens x 64 elements, 128-byte swizzled. Coordinates: (element, token, head, page).
cudaError_t MakePlaneMap(const PagedPlane& plane, int64_t num_pages, int num_heads, int page_tokens,
                         int dim, int box_tokens, CUtensorMap* map);

}  // namespace fathom::kernels::cuda
