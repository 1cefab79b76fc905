#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

cudaError_t RunDecodeSm90(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                          cudaStream_t stream) {
  if (dim_v == 512 && params.code == CacheCode::kInt8) {
    return params.float16 ? RunDecodeLatentSm90<CacheCode::kInt8, true>(params, stream)
                          : RunDecodeLatentSm90<CacheCode::kInt8>(params, stream);
  }
  if (dim_v == 512 && params.code == CacheCode::kE4m3) {
    return params.float16 ? RunDecodeLatentSm90<CacheCode::kE4m3, true>(params, stream)
                          : RunDecodeLatentSm90<CacheCode::kE4m3>(params, stream);
  }
  if (params.free_warps) return RunDecodeWarpsSm90(params.code, dim_v, rows, params, stream);
#define FATHOM_DECODE(QK, V, ROWS)                                           \
  if (dim_qk == (QK) && dim_v == (V) && rows == (ROWS)) {                    \
    return params.float16 ? RunDecodeSm90<QK, V, ROWS, true>(params, stream) \
                          : RunDecodeSm90<QK, V, ROWS>(params, stream);      \
  }
  FATHOM_DECODE(64, 64, 8)
  FATHOM_DECODE(64, 64, 16)
  FATHOM_DECODE(64, 64, 32)
  FATHOM_DECODE(64, 64, 64)
  FATHOM_DECODE(128, 128, 8)
  FATHOM_DECODE(128, 128, 16)
  FATHOM_DECODE(128, 128, 32)
  FATHOM_DECODE(128, 128, 64)
  FATHOM_DECODE(576, 512, 16)
  FATHOM_DECODE(576, 512, 32)
#undef FATHOM_DECODE
  if (dim_qk == 576 && dim_v == 512 && rows == 64) {
    return params.float16 ? RunDecodeWideSm90<true>(params, stream)
                          : RunDecodeWideSm90<false>(params, stream);
  }
  return cudaErrorNotSupported;
}

cudaError_t RunDecodeWarpsSm90(CacheCode code, int dim, int rows, const DecodeParams& params,
                               cudaStream_t stream) {
#define FATHOM_DECODE(CODE, DIM, ROWS)                                                           \
  if (code == CacheCode::CODE && dim == (DIM) && rows == (ROWS)) {                               \
    return params.float16 ? RunDecodeWarpsSm90<CacheCode::CODE, DIM, ROWS, true>(params, stream) \
                          : RunDecodeWarpsSm90<CacheCode::CODE, DIM, ROWS>(params, stream);      \
  }
#define FATHOM_DECODE_SHAPES(CODE) \
  FATHOM_DECODE(CODE, 64, 8)       \
  FATHOM_DECODE(CODE, 64, 16)      \
  FATHOM_DECODE(CODE, 128, 8)      \
  FATHOM_DECODE(CODE, 128, 16)
  FATHOM_DECODE_SHAPES(kBf16)
  FATHOM_DECODE_SHAPES(kInt8)
  FATHOM_DECODE_SHAPES(kE4m3)
#undef FATHOM_DECODE_SHAPES
#undef FATHOM_DECODE
  return cudaErrorNotSupported;
}

cudaError_t RunDecodeSm80(int dim_v, int rows, const DecodeParams& params, cudaStream_t stream) {
#define FATHOM_DECODE(DIM, ROWS)                                           \
  if (dim_v == (DIM) && rows == (ROWS)) {                                  \
    return params.float16 ? RunDecodeSm80<DIM, ROWS, true>(params, stream) \
                          : RunDecodeSm80<DIM, ROWS>(params, stream);      \
  }
#define FATHOM_DECODE_LATENT(ROWS)                                          \
  if (dim_v == 512 && rows == (ROWS)) {                                     \
    return params.float16 ? RunDecodeLatentSm80<ROWS, true>(params, stream) \
                          : RunDecodeLatentSm80<ROWS>(params, stream);      \
  }
  FATHOM_DECODE(64, 8)
  FATHOM_DECODE(64, 16)
  FATHOM_DECODE(128, 8)
  FATHOM_DECODE(128, 16)
  FATHOM_DECODE_LATENT(16)
  FATHOM_DECODE_LATENT(32)
#undef FATHOM_DECODE_LATENT
#undef FATHOM_DECODE
  return cudaErrorNotSupported;
}

cudaError_t RunDecode(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                      cudaStream_t stream) {
  return params.portable ? RunDecodeSm80(dim_v, rows, params, stream)
                         : RunDecodeSm90(dim_qk, dim_v, rows, params, stream);
}

}  // namespace fathom::kernels::cuda
