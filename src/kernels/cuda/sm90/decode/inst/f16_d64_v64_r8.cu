#include "kernels/cuda/sm90/decode/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeSm90<64, 64, 8, true>(const DecodeParams& params,
                                                    cudaStream_t stream);
}  // namespace fathom::kernels::cuda
