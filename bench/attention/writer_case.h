#pragma once
// One step of appending to a paged cache: rotation, norm and quantisation against float64.
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "ops/cuda/cache_write.h"

namespace fathom::bench {

struct WriterCase {
  std::string name;
  bool latent = false;  // MLA: rows of 512 and 64; else queries, keys and values
  kernels::cuda::CacheCode code = kernels::cuda::CacheCode::kBf16;
  kernels::cuda::RopePairs pairs = kernels::cuda::RopePairs::kHalves;
  bool float16 = false;  // in place of bf16
  int num_heads = 0;
  int num_kv_heads = 1;
  int dim = 0;  // MLA: of a query head, its last 64 rotated
  int rope_dim = 0;
  int page_tokens = 64;
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> query_tokens;
};

struct WriterErrors {
  double worst = 0;   // largest error over its bound: half a step of the code, or a rounding
  int64_t stray = 0;  // bytes changed that no token owns
};

class WriterRun {
 public:
  WriterRun(WriterCase shape, const ops::GpuLimits& gpu);
  ~WriterRun();

  void Run();
  WriterErrors Compare() const;
  double TimeUs(int repeats, L2 l2);
  double Bytes() const;  // read and written

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::vector<WriterCase> WriterCheckCases();
std::vector<WriterCase> WriterTimeCases();

}  // namespace fathom::bench
