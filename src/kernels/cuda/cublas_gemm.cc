#include "kernels/cuda/cublas_gemm.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <limits>
#include <string>

namespace fathom::kernels::cuda {

namespace {

// In the header it is overloaded.
using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m,
                                  int n, int k, const void* alpha, const void* a, cudaDataType,
                                  int lda, const void* b, cudaDataType, int ldb, const void* beta,
                                  void* c, cudaDataType, int ldc, cublasComputeType_t,
                                  cublasGemmAlgo_t);

}  // namespace

struct CublasGemm::Library {
  void* library = nullptr;
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  GemmEx gemm = nullptr;
  cublasHandle_t handle = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle != nullptr) destroy(handle);
    if (library != nullptr) dlclose(library);
  }

  template <class Function>
  Status Find(const char* name, Function* function) const {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function != nullptr) return {};
    return Err(Code::kUnsupported, "cuBLAS has no {}: expected version {}", name, CUBLAS_VER_MAJOR);
  }
};

Result<std::shared_ptr<const CublasGemm>> CublasGemm::Create() {
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  auto found = std::make_shared<Library>();
  found->library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (found->library == nullptr) {
    return Err(Code::kUnsupported,
               "cuBLAS: {}: expanding latents needs CUDA {}'s cuBLAS on the library path "
               "(LD_LIBRARY_PATH or ldconfig)",
               dlerror(), CUBLAS_VER_MAJOR);
  }
  FATHOM_TRY(found->Find("cublasCreate_v2", &found->create));
  FATHOM_TRY(found->Find("cublasDestroy_v2", &found->destroy));
  FATHOM_TRY(found->Find("cublasSetStream_v2", &found->set_stream));
  FATHOM_TRY(found->Find("cublasSetWorkspace_v2", &found->set_workspace));
  FATHOM_TRY(found->Find("cublasGemmEx", &found->gemm));
  if (const cublasStatus_t status = found->create(&found->handle);
      status != CUBLAS_STATUS_SUCCESS) {
    found->handle = nullptr;
    return Err(Code::kUnsupported, "cuBLAS: cublasCreate failed with status {}",
               static_cast<int>(status));
  }
  return std::shared_ptr<const CublasGemm>(new CublasGemm(std::move(found)));
}

cudaError_t CublasGemm::Multiply(const GemmParams& p, cudaStream_t stream) const {
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  if (p.m > kMax || p.n > kMax || p.k > kMax) return cudaErrorInvalidValue;
  const Library& blas = *library_;
  // The workspace is set last: a new stream takes it away.
  if (blas.set_stream(blas.handle, stream) != CUBLAS_STATUS_SUCCESS ||
      blas.set_workspace(blas.handle, p.workspace, static_cast<size_t>(p.workspace_bytes)) !=
          CUBLAS_STATUS_SUCCESS) {
    return cudaErrorInvalidValue;
  }
  // cuBLAS counts by columns: c' [n, m] = b [n, k] a' [k, m], both operands as they lie in memory.
  const float one = 1;
  const float zero = 0;
  const int m = static_cast<int>(p.m);
  const int n = static_cast<int>(p.n);
  const int k = static_cast<int>(p.k);
  const cudaDataType type = p.float16 ? CUDA_R_16F : CUDA_R_16BF;
  const cublasStatus_t status =
      blas.gemm(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, p.b, type, k, p.a, type, k,
                &zero, p.c, type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    default:
      return cudaErrorLaunchFailure;
  }
}

}  // namespace fathom::kernels::cuda
