#pragma once
// Every numeric tolerance of the tests, each with its reason.
namespace fathom::tolerances {

// One f32 kernel against f64: a chain of n roundings of 2^-24 grows like sqrt(n) for random signs;
// n <= 4096 in the tests, with a margin of 8. Relative to the largest magnitude of the result.
inline constexpr double kF32Kernel = 3e-5;

// Products of operands that are exactly bf16: the inputs carry no error, sums are f32 as above, but
// hardware pair products round twice and flush denormals.
inline constexpr double kBf16Kernel = 6e-5;

// Rounding one operand to bf16 costs 2^-9 an element; signs are random, so a dot product keeps it
// relative to its norm. The margin of 3 is for the largest of many elements.
inline constexpr double kBf16Rounding = 6e-3;

// rows.inc: degree-7 exponential, in units in the last place.
inline constexpr double kExpUlp = 2.0;

// Attention in f32: two matrix products and an exponential of arguments below 2^5, whose absolute
// error is 2^-24 * 2^5.
inline constexpr double kF32Attention = 5e-5;

// Attention in bf16: q, the probabilities and (MLA, prompt role) expanded keys and values are
// rounded to bf16; the result is relative to the largest output.
inline constexpr double kBf16Attention = 1.5e-2;

}  // namespace fathom::tolerances
