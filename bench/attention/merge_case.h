#pragma once
// The fold of partial attention states against float64.
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "ops/cuda/merge_states.h"

namespace fathom::bench {

struct MergeCase {
  std::string name;
  int num_states = 2;
  int64_t rows = 1;
  int dim = 128;
  bool float32 = false;      // states and result; else bf16,
  bool float16 = false;      // or float16
  double empty_share = 0.2;  // of (state, row) pairs that saw no key; their rows are NaN
  float lse_range = 20;      // log-sum-exps within +-this
};

class MergeRun {
 public:
  MergeRun(MergeCase shape, const ops::GpuLimits& gpu);
  ~MergeRun();

  void Run();
  // Relative in norm; infinite where a value is not a number. Log-sum-exp: largest difference.
  struct Errors {
    double out = 0;
    double lse = 0;
  };
  Errors Compare() const;
  double TimeUs(int repeats, L2 l2);
  double Bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of relative errors: what the result is rounded to, 2^-9, 2^-12 or a few of 2^-24.
inline double MergeTolerance(const MergeCase& c) {
  return c.float32 ? 1e-5 : c.float16 ? 4e-4 : 3e-3;
}

std::vector<MergeCase> MergeCheckCases();
std::vector<MergeCase> MergeTimeCases();

}  // namespace fathom::bench
