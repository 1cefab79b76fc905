#include "kernels/cuda/sm80/backward/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunBackwardSm80<128, true>(const BackwardParams& params, cudaStream_t stream);
}  // namespace fathom::kernels::cuda
