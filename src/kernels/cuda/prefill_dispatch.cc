#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

cudaError_t RunPrefillSm90(int dim_qk, int dim_v, const PrefillParams& params,
                           cudaStream_t stream) {
  if (params.float16) return cudaErrorNotSupported;
#define FATHOM_PREFILL(QK, V, GROUPS)                                                     \
  if (dim_qk == (QK) && dim_v == (V)) {                                                   \
    return params.lists == nullptr ? RunPrefillSm90<QK, V, GROUPS, false>(params, stream) \
                                   : RunPrefillSm90<QK, V, GROUPS, true>(params, stream); \
  }
  FATHOM_PREFILL(64, 64, 3)
  FATHOM_PREFILL(128, 128, 2)
  FATHOM_PREFILL(192, 128, 2)
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
  if (dim == 64) return RunBackwardSm80<64>(params, stream);
  if (dim == 128) return RunBackwardSm80<128>(params, stream);
  return cudaErrorNotSupported;
}

}  // namespace fathom::kernels::cuda
