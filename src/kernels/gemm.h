#pragma once
// C[m, n] (+)= A[m, k] B[k, n] for one panel of B: at most 32 columns. Every matrix product on the
// CPU is made of these calls, those of attention too.
//
// Each C element is one chain over k in increasing order, in one accumulator, whatever m, the row's
// place or the blocking: a row's bits depend on the row and the panel alone.
//
// Panels (64-byte aligned, columns past n are zero):
//   f32   [k][32]
//   bf16  [ceil(k / 2)][32][2]: the pair (2i, 2i + 1) of one column is one 32-bit word; the missing
//         half of an odd k is zero
#include <cstdint>

namespace fathom::kernels {

inline constexpr int kPanelColumns = 32;

struct GemmParams {
  const void* a = nullptr;          // [.., k] f32 or bf16; bf16 rows are zero-padded to an even k
  int64_t a_stride = 0;             // elements
  const int32_t* a_rows = nullptr;  // [m] row i of A is row a_rows[i]; null: row i
  const void* b = nullptr;          // the panel
  float* c = nullptr;               // [m, n]
  int64_t c_stride = 0;             // elements
  int32_t m = 0;
  int32_t n = 0;  // 1 .. 32
  int64_t k = 0;
  const float* bias = nullptr;  // [n], added last
  bool accumulate = false;      // the chain starts from C
  const void* next_b =
      nullptr;  // a panel of the same k that is read next: asked for ahead; null: none
};

using GemmFn = void (*)(const GemmParams&);

}  // namespace fathom::kernels
