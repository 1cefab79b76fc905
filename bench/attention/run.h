#pragma once
// The CUDA attention kernels checked and timed on this machine's GPU, as `fathom bench attention`
// runs them. Without CUDA in the build, run_without_cuda.cc answers with an error.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "ops/cuda/tuning.h"

namespace fathom::bench {

struct AttentionBenchOptions {
  bool check = false;  // against references, every check case
  bool time = false;   // the benchmark shapes
  bool decode = true;
  bool prefill = true;
  bool write = true;
  bool backward = true;
  bool merge = true;
  bool micro = true;   // --time: what the memory system does with strides and gathers
  bool small = false;  // only cases small enough for a sanitizer
  int repeats = 21;    // timed replays a shape; the median counts
  std::string only;    // cases whose name contains this
  // Tuning of this GPU; empty path: defaults.
  std::string tuning_path;
  std::string autotune_path;  // time every candidate on every shape and write the table there
};

struct AttentionBenchResult {
  nlohmann::json json;  // schema fathom.bench.attention/1
  int failures = 0;     // of checks
};

// Prints a line a case. An error when there is no GPU, or none that the kernels run on.
Result<AttentionBenchResult> RunAttentionBench(const AttentionBenchOptions& options);

}  // namespace fathom::bench
