#include "kernels/cuda/sm90/decode_warps/run.cuh"

namespace fathom::kernels::cuda {
template cudaError_t RunDecodeWarpsSm90<CacheCode::kInt8, 128, 8, true>(const DecodeParams& params,
                                                                        cudaStream_t stream);
}  // namespace fathom::kernels::cuda
