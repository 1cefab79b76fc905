#include "run.h"

namespace fathom::bench {

Result<AttentionBenchResult> RunAttentionBench(const AttentionBenchOptions& /*options*/) {
  return Err(Code::kUnsupported,
             "bench attention: this fathom was built without CUDA, so it has no kernels to run: "
             "build with PRESET=gpu make build (nvcc on the PATH), or use --explain, which needs "
             "neither");
}

}  // namespace fathom::bench
