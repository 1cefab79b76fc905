#include "kernels/cuda/sm80/prefill/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunPrefillSm80<192, 128, true>(const PrefillParams& params,
                                                    cudaStream_t stream);
}  // namespace fathom::kernels::cuda
