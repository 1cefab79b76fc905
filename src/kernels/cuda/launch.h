#pragma once
// Entry points of the CUDA kernels. They launch on the stream and return at once; none allocates,
// reads device memory from the host or synchronises, so all can be captured into a graph.
#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/cuda/backward_params.h"
#include "kernels/cuda/cache_write_params.h"
#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/merge_states_params.h"
#include "kernels/cuda/mla_prefill_params.h"
#include "kernels/cuda/prefill_params.h"

namespace fathom::kernels::cuda {

// How a kernel is launched: `overlap` starts it while the previous kernel of the stream ends (it
// calls ptx::WaitForPreviousKernel), `together` runs all its blocks at the same time.
struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  int shared_bytes = 0;
  bool overlap = false;
  bool together = false;
};

// Writes parts, part_pages, merges from kv_lengths, query_starts and page_table. Once a step: every
// layer with the same cache shape uses the result.
cudaError_t PrepareDecode(const DecodeParams& params, cudaStream_t stream);

// kDimQk x kDimV: 64 x 64, 128 x 128, 576 x 512 (MLA). kRows: 8 (not MLA), 16, 32, 64 (not MLA).
// kFloat16, here and below: queries, what is not quantised of the cache, and output in place of
// bf16.
template <int kDimQk, int kDimV, int kRows, bool kFloat16 = false>
cudaError_t RunDecodeSm90(const DecodeParams& params, cudaStream_t stream);

// MLA with 64 rows a block.
template <bool kFloat16 = false>
cudaError_t RunDecodeWideSm90(const DecodeParams& params, cudaStream_t stream);

// MLA from a quantised latent cache, 16 rows a block.
template <CacheCode kCode, bool kFloat16 = false>
cudaError_t RunDecodeLatentSm90(const DecodeParams& params, cudaStream_t stream);

// For GPUs without wgmma. kDim: 64, 128; kRows: 8, 16.
template <int kDim, int kRows, bool kFloat16 = false>
cudaError_t RunDecodeSm80(const DecodeParams& params, cudaStream_t stream);

// MLA. kRows: 16, 32.
template <int kRows, bool kFloat16 = false>
cudaError_t RunDecodeLatentSm80(const DecodeParams& params, cudaStream_t stream);

// GQA with free-running warps. kDim: 64, 128; kRows: 8, 16.
template <CacheCode kCode, int kDim, int kRows, bool kFloat16 = false>
cudaError_t RunDecodeWarpsSm90(const DecodeParams& params, cudaStream_t stream);

// Finds the instantiation; cudaErrorNotSupported when there is none.
cudaError_t RunDecodeWarpsSm90(CacheCode code, int dim, int rows, const DecodeParams& params,
                               cudaStream_t stream);
cudaError_t RunDecode(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                      cudaStream_t stream);
cudaError_t RunDecodeSm80(int dim_v, int rows, const DecodeParams& params, cudaStream_t stream);
cudaError_t RunDecodeSm90(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                          cudaStream_t stream);

// Gradients of dense attention. kDim: 64, 128.
template <int kDim, bool kFloat16 = false>
cudaError_t RunBackwardSm80(const BackwardParams& params, cudaStream_t stream);
cudaError_t RunBackward(int dim, const BackwardParams& params, cudaStream_t stream);

// Rotates, quantises and appends a step's rows.
cudaError_t RunCacheWrite(const CacheWriteParams& params, cudaStream_t stream);

// Folds partial results.
cudaError_t RunMergeStates(const MergeStatesParams& params, cudaStream_t stream);

// Writes tiles and num_tiles from kv_lengths and query_starts, for kernels of `rows` query rows.
cudaError_t PreparePrefill(const PrefillParams& params, int rows, int max_kv_tokens,
                           cudaStream_t stream);

// kDimQk x kDimV: 64 x 64 (192 rows a tile), 128 x 128 and 192 x 128 (128 rows). kLists: visits
// tile lists; there is nothing to prepare then.
template <int kDimQk, int kDimV, bool kLists, bool kFloat16 = false>
cudaError_t RunPrefillSm90(const PrefillParams& params, cudaStream_t stream);

// The same for GPUs without wgmma: 128 rows a tile.
template <int kDimQk, int kDimV, bool kFloat16 = false>
cudaError_t RunPrefillSm80(const PrefillParams& params, cudaStream_t stream);

// Finds the instantiation; cudaErrorNotSupported when there is none.
cudaError_t RunPrefill(int dim_qk, int dim_v, const PrefillParams& params, cudaStream_t stream);
cudaError_t RunPrefillSm80(int dim_qk, int dim_v, const PrefillParams& params, cudaStream_t stream);
cudaError_t RunPrefillSm90(int dim_qk, int dim_v, const PrefillParams& params, cudaStream_t stream);

// Multiplies on the stream (CublasGemm; on an emulated GPU, the host).
using GemmFunction = std::function<cudaError_t(const GemmParams&, cudaStream_t)>;

// MLA prefill from latent pages. Prepare, once a step for all layers: where sequences' keys lie in
// the parts, and the parts' query tiles, for prefill kernels of `rows` query rows. Run, once a
// layer: gathers, expands and attends to part after part, and merges the results.
cudaError_t PrepareMlaPrefill(const MlaPrefillParams& params, int rows, cudaStream_t stream);
cudaError_t RunMlaPrefill(const MlaPrefillParams& params, const GemmFunction& gemm,
                          cudaStream_t stream);
// Of these, the kernels.
cudaError_t PrepareMlaParts(const MlaPrefillParams& params, cudaStream_t stream);
cudaError_t GatherLatents(const MlaPrefillParams& params, int part, cudaStream_t stream);

}  // namespace fathom::kernels::cuda
