// One warp a row, four consecutive elements a lane and chunk; states are read in order.
#include "kernels/cuda/element_type.cuh"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/merge_states_params.h"

namespace fathom::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kElements = 4;  // of a lane's chunk
constexpr int kChunks = 512 / (32 * kElements);
constexpr float kLog2E = 1.4426950408889634f;

template <bool kFloat16>
__device__ void LoadRow(const AttentionState& state, int64_t row, int element,
                        float (&x)[kElements]) {
  if (state.float32) {
    const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(state.out) +
                                                      row * state.row_stride + element);
    x[0] = v.x;
    x[1] = v.y;
    x[2] = v.z;
    x[3] = v.w;
    return;
  }
  const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(state.out) +
                                                  row * state.row_stride + element);
  const float2 low = ElementType<kFloat16>::Unpack(v.x);
  const float2 high = ElementType<kFloat16>::Unpack(v.y);
  x[0] = low.x;
  x[1] = low.y;
  x[2] = high.x;
  x[3] = high.y;
}

template <bool kFloat16>
__global__ __launch_bounds__(kWarps * 32) void MergeStatesKernel(
    const __grid_constant__ MergeStatesParams params) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= params.rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float base = -INFINITY;
  float sum = 0;
  float folded[kChunks][kElements] = {};
  for (int p = 0; p < params.num_states; ++p) {
    const AttentionState& state = params.states[p];
    const float lse = state.lse[row];
    if (lse == -INFINITY) continue;  // saw nothing; its rows need not be numbers
    const float next = fmaxf(base, lse);
    const float old_weight = exp2f((base - next) * kLog2E);
    const float weight = exp2f((lse - next) * kLog2E);
    sum = sum * old_weight + weight;
    base = next;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int element = (c * 32 + lane) * kElements;
      if (element >= params.dim) continue;
      float x[kElements];
      LoadRow<kFloat16>(state, row, element, x);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        folded[c][i] = folded[c][i] * old_weight + weight * x[i];
      }
    }
  }
  __syncwarp();  // all lanes have read what the result may be written over
  const float scale = sum > 0 ? 1.f / sum : 0.f;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int element = (c * 32 + lane) * kElements;
    if (element >= params.dim) continue;
    const int64_t at = row * params.out_row_stride + element;
    const float(&f)[kElements] = folded[c];
    if (params.out_float32) {
      *reinterpret_cast<float4*>(static_cast<float*>(params.out) + at) =
          make_float4(f[0] * scale, f[1] * scale, f[2] * scale, f[3] * scale);
    } else {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(params.out) + at) =
          make_uint2(ElementType<kFloat16>::Pack(f[0] * scale, f[1] * scale),
                     ElementType<kFloat16>::Pack(f[2] * scale, f[3] * scale));
    }
  }
  if (params.lse != nullptr && lane == 0) {
    params.lse[row] = sum > 0 ? base + logf(sum) : -INFINITY;
  }
}

}  // namespace

cudaError_t RunMergeStates(const MergeStatesParams& params, cudaStream_t stream) {
  return LaunchKernel(
      params.float16 ? MergeStatesKernel<true> : MergeStatesKernel<false>,
      {.blocks = static_cast<int>((params.rows + kWarps - 1) / kWarps), .threads = kWarps * 32},
      stream, params);
}

}  // namespace fathom::kernels::cuda
