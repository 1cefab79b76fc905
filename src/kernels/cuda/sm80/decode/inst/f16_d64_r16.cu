#include "kernels/cuda/sm80/decode/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeSm80<64, 16, true>(const DecodeParams& params, cudaStream_t stream);
}  // namespace fathom::kernels::cuda
