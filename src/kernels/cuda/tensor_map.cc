#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

namespace fathom::kernels::cuda {
namespace {

// The driver's encoder, found at run time so that nothing links against libcuda.
PFN_cuTensorMapEncodeTiled_v12000 Encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &found);
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)
               : nullptr;
  }();
  return encoder;
}

}  // namespace

cudaError_t MakePlaneMap(const PagedPlane& plane, int64_t num_pages, int num_heads, int page_tokens,
                         int dim, int box_tokens, CUtensorMap* map) {
  const auto encoder = Encoder();
  if (encoder == nullptr) return cudaErrorNotSupported;
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(page_tokens),
                                 static_cast<cuuint64_t>(num_heads),
                                 static_cast<cuuint64_t>(num_pages)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(plane.token_stride_bytes),
                                 static_cast<cuuint64_t>(plane.head_stride_bytes),
                                 static_cast<cuuint64_t>(plane.page_stride_bytes)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_tokens), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encoder(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(plane.base), extents,
              strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fathom::kernels::cuda
