#pragma once
// Entry points of the CUDA kernels. They launch on the stream and return at once; none allocates,
// reads device memory from the host or synchronises, so all can be captured into a graph.
#include <cuda_runtime_api.h>

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"

namespace fathom::kernels::cuda {

// Writes parts, part_pages, merges from kv_lengths, query_starts and page_table. Once a step: every
// layer with the same cache shape uses the result.
cudaError_t PrepareDecode(const DecodeParams& params, cudaStream_t stream);

// kDimQk x kDimV: 64 x 64, 128 x 128, 576 x 512 (MLA). kRows: 8 (not MLA), 16, 32, 64.
template <int kDimQk, int kDimV, int kRows>
cudaError_t RunDecodeSm90(const DecodeParams& params, cudaStream_t stream);

// Finds the instantiation; cudaErrorNotSupported when there is none.
cudaError_t RunDecodeSm90(int dim_qk, int dim_v, int rows, const DecodeParams& params,
                          cudaStream_t stream);

// Writes tiles and num_tiles from kv_lengths and query_starts, for kernels of `rows` query rows.
cudaError_t PreparePrefill(const PrefillParams& params, int rows, int max_kv_tokens,
                           cudaStream_t stream);

// kDimQk x kDimV: 64 x 64 (192 rows a tile), 128 x 128 and 192 x 128 (128 rows).
template <int kDimQk, int kDimV, int kGroups>
cudaError_t RunPrefillSm90(const PrefillParams& params, cudaStream_t stream);

// Finds the instantiation; cudaErrorNotSupported when there is none.
cudaError_t RunPrefillSm90(int dim_qk, int dim_v, const PrefillParams& params, cudaStream_t stream);

}  // namespace fathom::kernels::cuda
