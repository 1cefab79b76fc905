#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

cudaError_t RunPrefillSm90(int dim_qk, int dim_v, const PrefillParams& params,
                           cudaStream_t stream) {
  if (dim_qk == 64 && dim_v == 64) return RunPrefillSm90<64, 64, 3>(params, stream);
  if (dim_qk == 128 && dim_v == 128) return RunPrefillSm90<128, 128, 2>(params, stream);
  if (dim_qk == 192 && dim_v == 128) return RunPrefillSm90<192, 128, 2>(params, stream);
  return cudaErrorNotSupported;
}

}  // namespace fathom::kernels::cuda
