// What only a GPU can say: the emulated one has its own (tests/cuda/emulator).
#include "base/check.h"
#include "decode_case.h"
#include "device.h"

namespace fathom::bench {

void CheckCuda(cudaError_t status, const char* what) {
  FATHOM_CHECK(status == cudaSuccess, "{}: {}", what, cudaGetErrorString(status));
}

ops::GpuLimits QueryGpu() {
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return {.compute_major = properties.major,
          .compute_minor = properties.minor,
          .num_sms = properties.multiProcessorCount,
          .shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
          .l2_bytes = properties.l2CacheSize};
}

}  // namespace fathom::bench
