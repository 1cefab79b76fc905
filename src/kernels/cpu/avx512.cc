#define FATHOM_ISA avx512
#define FATHOM_NATIVE_BF16 0
#define FATHOM_SIMD "kernels/cpu/simd_avx512.inc"
#include "kernels/cpu/kernels.inc"
