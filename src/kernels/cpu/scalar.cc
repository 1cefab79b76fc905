#define FATHOM_ISA scalar
#define FATHOM_NATIVE_BF16 0
#define FATHOM_SIMD "kernels/cpu/simd_scalar.inc"
#include "kernels/cpu/kernels.inc"
