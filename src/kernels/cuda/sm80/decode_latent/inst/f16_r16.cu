#include "kernels/cuda/sm80/decode_latent/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeLatentSm80<16, true>(const DecodeParams& params, cudaStream_t stream);
}  // namespace fathom::kernels::cuda
