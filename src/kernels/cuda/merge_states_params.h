#pragma once
// Parameters of the kernel that folds partial attention results over disjoint sets of keys: of
// splits, of dense and sparse parts, of chunks or of other devices. POD, no CUDA headers.
#include <cstdint>

namespace fathom::kernels::cuda {

inline constexpr int kMaxMergeStates = 16;  // in one launch; more fold in several

// Rows [rows, dim] bf16, float16 or f32, and their log-sum-exp (natural log; -inf: saw no key).
// Device memory.
struct AttentionState {
  const void* out = nullptr;
  const float* lse = nullptr;
  int64_t row_stride = 0;  // elements, a multiple of 4
  bool float32 = false;
};

// out = sum_p exp(lse_p - lse) out_p with lse = log sum_p exp(lse_p), folded in the order given:
// the same states in the same order give the same bits. Rows that no state has seen give 0 and
// -inf. Results may be written over a state.
struct MergeStatesParams {
  AttentionState states[kMaxMergeStates];
  int32_t num_states = 0;
  int32_t dim = 0;  // a multiple of 4, at most 512
  int64_t rows = 0;
  void* out = nullptr;
  int64_t out_row_stride = 0;
  bool out_float32 = false;
  bool float16 = false;  // states and result: float16 where they are not float32, else bf16
  float* lse = nullptr;  // or null
};

}  // namespace fathom::kernels::cuda
