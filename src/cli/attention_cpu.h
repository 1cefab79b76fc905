#pragma once
// The attention op of this machine's CPU on one shape, dense or over a sparse plan: timed, and
// checked against float64. Random contents; pages in a scrambled order.
#include <string>

#include "base/result.h"
#include "ops/cuda/attention_case.h"

namespace fathom::cli {

struct CpuAttentionOptions {
  int threads = 0;      // 0: all
  std::string cpu_isa;  // empty: the best
  int repeats = 21;
};

struct CpuAttentionResult {
  std::string isa;
  int threads = 0;
  double us = 0;        // median
  double gb_per_s = 0;  // of kept keys and values
  double gflops = 0;    // of unmasked pairs
  double error = 0;     // largest difference of the checked rows, relative to their largest value
  double roof_bytes_per_s = 0;  // measured read bandwidth
  int64_t tiles = 0;            // of 64 keys, visited; 0: dense
  int64_t dense_tiles = 0;
};

// GQA of bf16 caches. Errors: MLA and what the CPU op does not take.
Result<CpuAttentionResult> RunCpuAttention(const ops::AttentionCase& problem,
                                           const CpuAttentionOptions& options);

}  // namespace fathom::cli
