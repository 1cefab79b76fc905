// The benchmark's cases ask for these; time does not pass in the emulator.
#include "attention/copy_tiles.h"
#include "attention/device.h"
#include "base/check.h"

namespace fathom::bench {

void CheckCuda(cudaError_t status, const char* what) {
  FATHOM_CHECK(status == cudaSuccess, "{}: {}", what, cudaGetErrorString(status));
}

double TimeCold(const std::function<void(cudaStream_t)>& work, int repeats, L2 state) {
  static_cast<void>(repeats);
  static_cast<void>(state);
  work(nullptr);
  return 0;
}

cudaError_t RunCopyTiles(const kernels::cuda::DecodeParams&, int, int, const CopyTilesOptions&,
                         cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t RunXorTiles(const kernels::cuda::DecodeParams&, int, int, uint32_t*, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace fathom::bench
