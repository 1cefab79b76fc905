#include "kernels/cuda/sm90/prefill/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunPrefillSm90<192, 128, true, true>(const PrefillParams& params,
                                                          cudaStream_t stream);
}  // namespace fathom::kernels::cuda
