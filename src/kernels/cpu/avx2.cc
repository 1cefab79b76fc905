#define FATHOM_ISA avx2
#define FATHOM_NATIVE_BF16 0
#define FATHOM_SIMD "kernels/cpu/simd_avx2.inc"
#include "kernels/cpu/kernels.inc"
