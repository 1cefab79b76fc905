#pragma once
// Products by cuBLAS, which is loaded when it is first asked for: only expansion of latents needs
// it, and it is many times the size of everything else.
#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.h"
#include "kernels/cuda/mla_prefill_params.h"

namespace fathom::kernels::cuda {

// A handle for one thread and the device that is current when it is made. Usable as a GemmFunction
// by reference; the workspace is the caller's, so that nothing is allocated and streams can be
// captured.
class CublasGemm {
 public:
  // An error when the library cannot be loaded or refuses to start.
  static Result<std::shared_ptr<const CublasGemm>> Create();

  cudaError_t Multiply(const GemmParams& params, cudaStream_t stream) const;

 private:
  struct Library;
  explicit CublasGemm(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
};

}  // namespace fathom::kernels::cuda
