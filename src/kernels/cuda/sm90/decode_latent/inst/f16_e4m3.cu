#include "kernels/cuda/sm90/decode_latent/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeLatentSm90<CacheCode::kE4m3, true>(const DecodeParams& params,
                                                                 cudaStream_t stream);
}  // namespace fathom::kernels::cuda
