#define FATHOM_ISA avx512bf16
#define FATHOM_NATIVE_BF16 1
#define FATHOM_SIMD "kernels/cpu/simd_avx512.inc"
#include "kernels/cpu/kernels.inc"
