#pragma once
// One prefill shape: inputs on the device, poisoned where nothing may read, a run of Fathom's
// kernel, and how far sampled rows are from a float32 reference.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/sparse_plan.h"

namespace fathom::bench {

struct PrefillCase {
  std::string name;
  int num_heads = 0;
  int num_kv_heads = 0;
  int dim_qk = 0;
  int dim_v = 0;
  bool causal = true;
  int window = INT32_MAX;  // keys kept: q - k <= window or k < anchors
  int anchors = 0;
  int page_tokens = 0;  // 0: contiguous
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> query_tokens;  // empty: as many as keys
  float logit_scale = 1;
  bool float16 = false;                            // queries, keys, values and output
  Weights weights = Weights::kRandom;              // else queries and cache are what makes these
  std::optional<ops::sparse::Policy> policy = {};  // what it keeps is visited by tile lists
};

class PrefillRun {
 public:
  PrefillRun(PrefillCase shape, const ops::PrefillAttentionOptions& options,
             const ops::GpuLimits& gpu);
  ~PrefillRun();

  const ops::PrefillAttentionPlan& plan() const;
  void Run();  // Prepare and Run
  std::vector<uint16_t> Output();
  AttentionErrors CompareFloat32(int max_rows);  // at most so many rows, spread over the output
  double TimeUs(int repeats, L2 state);          // Run alone
  double Flops() const;                          // of unmasked pairs

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::vector<PrefillCase> PrefillCheckCases();
std::vector<PrefillCase> PrefillTimeCases();

}  // namespace fathom::bench
