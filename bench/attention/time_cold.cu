// Times; the emulated GPU has none.
#include <algorithm>

#include "device.h"

namespace fathom::bench {
namespace {

__global__ void EmptyKernel() {}

__global__ void ReadKernel(const uint4* data, int64_t count) {
  uint32_t any = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 v = __ldcg(data + i);
    any |= v.x | v.y | v.z | v.w;
  }
  if (any == 0x12345678) __trap();  // keeps the loads
}

}  // namespace

void LaunchEmpty(cudaStream_t stream) { EmptyKernel<<<1, 32, 0, stream>>>(); }

double TimeCold(const std::function<void(cudaStream_t)>& work, int repeats, L2 state) {
  constexpr int64_t kFlushBytes = int64_t{256} << 20;
  static const Buffer flush(kFlushBytes);
  static const Buffer clean(kFlushBytes);
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  work(stream);  // loads the module
  CheckCuda(cudaStreamSynchronize(stream), "first run");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end capture");
  CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<double> times;
  for (int i = -2; i < repeats; ++i) {
    CheckCuda(cudaMemsetAsync(flush.As<void>(), i & 0xff, kFlushBytes, stream), "flush");
    if (state == L2::kClean) {
      ReadKernel<<<1024, 256, 0, stream>>>(clean.As<uint4>(), kFlushBytes / 16);
    }
    cudaEventRecord(start, stream);
    CheckCuda(cudaGraphLaunch(exec, stream), "graph");
    cudaEventRecord(stop, stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    if (i >= 0) times.push_back(ms * 1e3);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace fathom::bench
