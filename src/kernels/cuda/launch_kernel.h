#pragma once
// Launching by shape; for CUDA sources.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace fathom::kernels::cuda {

template <class... Params, class... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                         const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (shape.overlap) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.together) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The same after raising the kernel's limit of dynamic shared memory, once a process.
template <auto kKernel, class... Arguments>
cudaError_t LaunchLarge(const LaunchShape& shape, cudaStream_t stream,
                        const Arguments&... arguments) {
  static const cudaError_t configured = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (configured != cudaSuccess) return configured;
  return LaunchKernel(kKernel, shape, stream, arguments...);
}

}  // namespace fathom::kernels::cuda
