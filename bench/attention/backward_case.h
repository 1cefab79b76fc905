#pragma once
// One backward shape: forward and backward on the device, gradients of sampled rows in float64.
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "ops/cuda/backward_attention.h"

namespace fathom::bench {

struct BackwardCase {
  std::string name;
  int batch = 1;
  int length = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int dim = 0;
  bool causal = true;
  bool float16 = false;   // all tensors
  float d_out_scale = 1;  // largest element of the output's gradient
  // log2 of how far each sequence's first key outweighs each other, where not 0. Its own gradients
  // are not compared: they would hide the others'.
  float sink = 0;
};

// Relative, in norm.
struct GradientErrors {
  double d_q = 0;
  double d_k = 0;
  double d_v = 0;
  double Worst() const { return std::max(d_q, std::max(d_k, d_v)); }  // NaN stays
};

class BackwardRun {
 public:
  BackwardRun(BackwardCase shape, const ops::GpuLimits& gpu);
  ~BackwardRun();

  void Run();                              // forward, then backward
  std::vector<uint16_t> Output() const;    // all gradients
  GradientErrors Compare(int rows) const;  // so many rows of each gradient, spread over all
  double TimeUs(int repeats, L2 l2);       // backward alone
  double Flops() const;                    // five products over unmasked pairs

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::vector<BackwardCase> BackwardCheckCases();
std::vector<BackwardCase> BackwardTimeCases();

}  // namespace fathom::bench
