#pragma once
// One shape of MLA prefill from latent pages: inputs on the device, poisoned where nothing may
// read, a run, and how far sampled rows are from float64 attention in the latent space.
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "kernels/cuda/launch.h"
#include "ops/cuda/mla_prefill.h"

namespace fathom::bench {

// Expanded keys are rounded to bf16 before they meet queries: 2^-9 at most of each product. With
// the cases' values the sum of 128 is off by 0.8e-3 (standard deviation), and log-sum-exp of few
// keys as much. Float16 rounds to an eighth.
inline constexpr double kMlaLseTolerance = 5e-3;
inline constexpr double kMlaLseToleranceF16 = 1e-3;

struct MlaPrefillCase {
  std::string name;
  int num_heads = 0;
  int page_tokens = 64;
  bool interleaved = false;  // a token's rotated key behind its latents, else two planes
  bool causal = true;
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> query_tokens;  // empty: as many as keys
  int32_t part_keys = 0;              // workspace for so many keys a part; 0: the default
  int32_t max_states = 8;             // merged at once
  bool float16 = false;               // queries, cache, weights and output
  int32_t spare_keys = 0;             // by which the plan's bound exceeds the sequences' keys
};

class MlaPrefillRun {
 public:
  MlaPrefillRun(MlaPrefillCase shape, ops::MlaPrefillOptions options, const ops::GpuLimits& gpu,
                kernels::cuda::GemmFunction gemm);
  ~MlaPrefillRun();

  const ops::MlaPrefillPlan& plan() const;
  void Run();  // Prepare and Run
  std::vector<uint16_t> Output();
  AttentionErrors CompareFloat64(int max_rows);  // at most so many rows, spread over the output
  double TimeUs(int repeats, L2 state);          // Run alone
  double AttentionFlops() const;                 // of unmasked pairs
  double ExpansionFlops() const;                 // of the sequences' keys

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::vector<MlaPrefillCase> MlaPrefillCheckCases();
std::vector<MlaPrefillCase> MlaPrefillTimeCases();

}  // namespace fathom::bench
