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

cudaError_t MakeMap(const PagedPlane& plane, const MapShape& shape, CUtensorMap* map) {
  const auto encoder = Encoder();
  if (encoder == nullptr) return cudaErrorNotSupported;
  const cuuint64_t extents[4] = {
      static_cast<cuuint64_t>(shape.elements), static_cast<cuuint64_t>(shape.tokens),
      static_cast<cuuint64_t>(shape.num_heads), static_cast<cuuint64_t>(shape.num_pages)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(plane.token_stride_bytes),
                                 static_cast<cuuint64_t>(plane.head_stride_bytes),
                                 static_cast<cuuint64_t>(plane.page_stride_bytes)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(shape.box_elements),
                             static_cast<cuuint32_t>(shape.box_tokens), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type = shape.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : shape.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const CUtensorMapSwizzle swizzle = shape.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : shape.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUresult result =
      encoder(map, type, 4, const_cast<void*>(plane.base), extents, strides, box, steps,
              CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fathom::kernels::cuda
