#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

cudaError_t RunPrefillSm90(int dim_qk, int dim_v, const PrefillParams& params,
                           cudaStream_t stream) {
  const bool lists = params.lists != nullptr;
#define FATHOM_PREFILL(QK, V, LISTS, FLOAT16)                                            \
  if (dim_qk == (QK) && dim_v == (V) && lists == (LISTS) && params.float16 == (FLOAT16)) \
  return RunPrefillSm90<QK, V, LISTS, FLOAT16>(params, stream)
#define FATHOM_PREFILL_DIMS(LISTS, FLOAT16) \
  FATHOM_PREFILL(64, 64, LISTS, FLOAT16);   \
  FATHOM_PREFILL(128, 128, LISTS, FLOAT16); \
  FATHOM_PREFILL(192, 128, LISTS, FLOAT16)
  FATHOM_PREFILL_DIMS(false, false);
  FATHOM_PREFILL_DIMS(true, false);
  FATHOM_PREFILL_DIMS(false, true);
  FATHOM_PREFILL_DIMS(true, true);
#undef FATHOM_PREFILL_DIMS
#undef FATHOM_PREFILL
  return cudaErrorNotSupported;
}

cudaError_t RunPrefillSm80(int dim_qk, int dim_v, const PrefillParams& params,
                           cudaStream_t stream) {
#define FATHOM_PREFILL(QK, V)                                           \
  if (dim_qk == (QK) && dim_v == (V)) {                                 \
    return params.float16 ? RunPrefillSm80<QK, V, true>(params, stream) \
                          : RunPrefillSm80<QK, V>(params, stream);      \
  }
  FATHOM_PREFILL(64, 64)
  FATHOM_PREFILL(128, 128)
  FATHOM_PREFILL(192, 128)
#undef FATHOM_PREFILL
  return cudaErrorNotSupported;
}

cudaError_t RunPrefill(int dim_qk, int dim_v, const PrefillParams& params, cudaStream_t stream) {
  return params.portable ? RunPrefillSm80(dim_qk, dim_v, params, stream)
                         : RunPrefillSm90(dim_qk, dim_v, params, stream);
}

cudaError_t RunBackward(int dim, const BackwardParams& params, cudaStream_t stream) {
  if (dim == 64) {
    return params.float16 ? RunBackwardSm80<64, true>(params, stream)
                          : RunBackwardSm80<64>(params, stream);
  }
  if (dim == 128) {
    return params.float16 ? RunBackwardSm80<128, true>(params, stream)
                          : RunBackwardSm80<128>(params, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace fathom::kernels::cuda
