#include "kernels/cuda/sm90/decode_wide/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeWideSm90<true>(const DecodeParams& params, cudaStream_t stream);
}  // namespace fathom::kernels::cuda
