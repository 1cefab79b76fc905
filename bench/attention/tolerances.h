#pragma once
// How far results may be from references.

namespace fathom::bench {

inline constexpr double kTolerance = 5e-3;  // bf16 output and probabilities, relative in norm
inline constexpr double kToleranceF16 = kTolerance / 8;  // float16 has three bits more
inline constexpr double kGradientTolerance = 1e-2;  // bf16: sums of products of two rounded factors
inline constexpr double kLseTolerance = 1e-3;       // float32 sums of bf16 products

}  // namespace fathom::bench
