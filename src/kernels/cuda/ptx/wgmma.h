#pragma once
// Warpgroup matrix multiply (sm_90a), bf16 or float16 operands, float32 accumulators.
//
// Accumulator of m64nN: warp w of the group holds rows 16w + lane/4 and +8; register 4j + {0, 1}
// columns 8j + 2(lane % 4) + {0, 1} of the first row, 4j + {2, 3} those of the second.
#include <cstdint>

namespace fathom::kernels::cuda::ptx {

enum class Major : int { kK = 0, kMn = 1 };  // which dimension of an operand is contiguous

// Descriptor of an operand in 128-byte-swizzled shared memory: atoms of 8 rows x 128 bytes, 1024
// bytes apart. K-major: a row is 64 k of one m or n; 32 bytes further is the next 16 k. MN-major: a
// row is 64 m or n of one k; 2048 bytes further is the next 16 k, and `mn_stride` bytes further the
// next 64 m or n.
__device__ __forceinline__ uint64_t Descriptor(uint32_t shared_address, uint32_t mn_stride = 16) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kAtomStride = 1024 >> 4;
  return kSwizzle128 | kAtomStride << 32 | static_cast<uint64_t>(mn_stride >> 4) << 16 |
         (shared_address & 0x3ffff) >> 4;
}
// The same operand `bytes` further on.
__device__ __forceinline__ uint64_t Advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Orders register accesses before the wgmma that follow.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of accumulators across a wait.
template <int kCount>
__device__ __forceinline__ void WgmmaFenceRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define FATHOM_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FATHOM_ACC8(d, i) FATHOM_ACC4(d, i), FATHOM_ACC4(d, i + 4)
#define FATHOM_ACC16(d, i) FATHOM_ACC8(d, i), FATHOM_ACC8(d, i + 8)
#define FATHOM_REGS4 "%0,%1,%2,%3"
#define FATHOM_REGS8 FATHOM_REGS4 ",%4,%5,%6,%7"
#define FATHOM_REGS16 FATHOM_REGS8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FATHOM_REGS32 \
  FATHOM_REGS16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define FATHOM_REGS64                                                                \
  FATHOM_REGS32                                                                      \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51" \
  ",%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define FATHOM_REGS128                                                                    \
  FATHOM_REGS64                                                                           \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84"  \
  ",%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104" \
  ",%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121" \
  ",%122,%123,%124,%125,%126,%127"
#define FATHOM_ACC64(d, i) \
  FATHOM_ACC16(d, i), FATHOM_ACC16(d, i + 16), FATHOM_ACC16(d, i + 32), FATHOM_ACC16(d, i + 48)

// The numbers of operands follow those of the accumulators, which are the last arguments.
#define FATHOM_WGMMA_SS(TYPE, N, REGS, A, B, P, TA, TB, ...)                                       \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P                                                \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, %" #A \
               ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";}\n"                                        \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)),                                \
                 "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)))
#define FATHOM_WGMMA_RS(TYPE, N, REGS, A, B, P, TB, ...)                                          \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P                                               \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, {" A \
               "}, %" #B ", p, 1, 1, %" #TB ";}\n"                                                \
               : __VA_ARGS__                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                              \
                 "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kMajorB)))
#define FATHOM_WGMMA(FORM, ...)               \
  if constexpr (kFloat16) {                   \
    FATHOM_WGMMA_##FORM("f16", __VA_ARGS__);  \
  } else {                                    \
    FATHOM_WGMMA_##FORM("bf16", __VA_ARGS__); \
  }

// d[N/2] (+)= A B, both in shared memory. `accumulate` false overwrites d.
template <int kN, Major kMajorA, Major kMajorB, bool kFloat16 = false>
__device__ __forceinline__ void WgmmaSS(float (&d)[kN / 2], uint64_t a, uint64_t b,
                                        bool accumulate) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 8) {
    FATHOM_WGMMA(SS, 8, FATHOM_REGS4, 4, 5, 6, 7, 8, FATHOM_ACC4(d, 0))
  } else if constexpr (kN == 16) {
    FATHOM_WGMMA(SS, 16, FATHOM_REGS8, 8, 9, 10, 11, 12, FATHOM_ACC8(d, 0))
  } else if constexpr (kN == 32) {
    FATHOM_WGMMA(SS, 32, FATHOM_REGS16, 16, 17, 18, 19, 20, FATHOM_ACC16(d, 0))
  } else if constexpr (kN == 64) {
    FATHOM_WGMMA(SS, 64, FATHOM_REGS32, 32, 33, 34, 35, 36, FATHOM_ACC16(d, 0), FATHOM_ACC16(d, 16))
  } else if constexpr (kN == 128) {
    FATHOM_WGMMA(SS, 128, FATHOM_REGS64, 64, 65, 66, 67, 68, FATHOM_ACC64(d, 0))
  } else {
    FATHOM_WGMMA(SS, 256, FATHOM_REGS128, 128, 129, 130, 131, 132, FATHOM_ACC64(d, 0),
                 FATHOM_ACC64(d, 64))
  }
}

// d[N/2] (+)= A B, A (64 x 16) in registers, B in shared memory.
template <int kN, Major kMajorB, bool kFloat16 = false>
__device__ __forceinline__ void WgmmaRS(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                        bool accumulate) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 8) {
    FATHOM_WGMMA(RS, 8, FATHOM_REGS4, "%4,%5,%6,%7", 8, 9, 10, FATHOM_ACC4(d, 0))
  } else if constexpr (kN == 16) {
    FATHOM_WGMMA(RS, 16, FATHOM_REGS8, "%8,%9,%10,%11", 12, 13, 14, FATHOM_ACC8(d, 0))
  } else if constexpr (kN == 32) {
    FATHOM_WGMMA(RS, 32, FATHOM_REGS16, "%16,%17,%18,%19", 20, 21, 22, FATHOM_ACC16(d, 0))
  } else if constexpr (kN == 64) {
    FATHOM_WGMMA(RS, 64, FATHOM_REGS32, "%32,%33,%34,%35", 36, 37, 38, FATHOM_ACC16(d, 0),
                 FATHOM_ACC16(d, 16))
  } else if constexpr (kN == 128) {
    FATHOM_WGMMA(RS, 128, FATHOM_REGS64, "%64,%65,%66,%67", 68, 69, 70, FATHOM_ACC64(d, 0))
  } else {
    FATHOM_WGMMA(RS, 256, FATHOM_REGS128, "%128,%129,%130,%131", 132, 133, 134, FATHOM_ACC64(d, 0),
                 FATHOM_ACC64(d, 64))
  }
}

#undef FATHOM_WGMMA
#undef FATHOM_WGMMA_SS
#undef FATHOM_WGMMA_RS
#undef FATHOM_ACC4
#undef FATHOM_ACC8
#undef FATHOM_ACC16
#undef FATHOM_REGS4
#undef FATHOM_REGS8
#undef FATHOM_REGS16
#undef FATHOM_REGS32
#undef FATHOM_REGS64
#undef FATHOM_REGS128
#undef FATHOM_ACC64

}  // namespace fathom::kernels::cuda::ptx
