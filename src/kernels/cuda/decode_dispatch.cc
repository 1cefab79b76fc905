#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

cudaError_t RunDecodeSm90(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                          cudaStream_t stream) {
#define FATHOM_DECODE(QK, V, ROWS)                      \
  if (dim_qk == (QK) && dim_v == (V) && rows == (ROWS)) \
  return RunDecodeSm90<QK, V, ROWS>(params, stream)
  FATHOM_DECODE(64, 64, 8);
  FATHOM_DECODE(64, 64, 16);
  FATHOM_DECODE(64, 64, 32);
  FATHOM_DECODE(64, 64, 64);
  FATHOM_DECODE(128, 128, 8);
  FATHOM_DECODE(128, 128, 16);
  FATHOM_DECODE(128, 128, 32);
  FATHOM_DECODE(128, 128, 64);
  FATHOM_DECODE(576, 512, 16);
  FATHOM_DECODE(576, 512, 32);
  FATHOM_DECODE(576, 512, 64);
#undef FATHOM_DECODE
  return cudaErrorNotSupported;
}

}  // namespace fathom::kernels::cuda
