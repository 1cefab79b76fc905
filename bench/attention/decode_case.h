#pragma once
// One decode shape: its inputs on the device, poisoned where nothing may read, a run of Fathom's
// kernels, and how far the result is from the references.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "ops/cuda/decode_attention.h"
#include "ops/sparse_plan.h"

namespace fathom::bench {

struct DecodeCase {
  std::string name;
  int num_heads = 0;
  int num_kv_heads = 0;
  int dim_qk = 0;
  int dim_v = 0;
  int page_tokens = 64;
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> query_tokens;  // empty: one each
  float logit_scale = 1;              // multiplies the queries
  bool scattered = true;              // pages in a scrambled order, else one after the other
  bool token_major = true;            // [page, token, head, dim], else [page, head, token, dim]
  bool contiguous = false;            // [head, page, token, dim], keys and values apart; bf16
  kernels::cuda::CacheCode code = kernels::cuda::CacheCode::kBf16;
  bool float16 = false;                // queries, what is not quantised of the cache, and output
  Weights weights = Weights::kRandom;  // else queries and cache are what makes these
  std::optional<ops::sparse::Policy> policy = {};  // what it keeps is visited by tile lists

  bool sparse() const { return policy.has_value(); }
};

class DecodeRun {
 public:
  DecodeRun(DecodeCase shape, const ops::DecodeAttentionOptions& options,
            const ops::GpuLimits& gpu);
  ~DecodeRun();

  const ops::DecodeAttentionPlan& plan() const;
  void Prepare();
  void Run();
  std::vector<uint16_t> Output();        // bf16 bits [num_tokens, num_heads, dim_v]
  AttentionErrors CompareFloat32();      // naive kernel on the GPU
  AttentionErrors CompareFloat64();      // on the host; small shapes
  bool ScheduleMatchesHost();            // Prepare's tables are those of decode_schedule.h
  double TimeUs(int repeats, L2 state);  // Run alone
  // The plan's tiles copied and dropped (copy_tiles.h), by the fastest of a few rings; none where
  // that knows no such cache.
  std::optional<double> TimeCopiesUs(int repeats, L2 state);
  double CacheBytes() const;  // of the tiles that must be read
  double Flops() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

ops::GpuLimits QueryGpu();

}  // namespace fathom::bench
