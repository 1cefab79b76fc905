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

// Logits of a whole model against its golden data, ||difference|| / ||expected|| at each position.
// f32: the reference sums in f64, so what is left is the rounding of sums of a few hundred terms
// through a few layers. bf16: inputs of each product have 8 bits, 2^-9 a rounding, through the same
// layers.
inline constexpr double kGoldenF32 = 5e-5;
inline constexpr double kGoldenBf16 = 2e-2;

// A routing decision closer than this may fall either way in bf16, whose rounding moves a score by
// about that much.
inline constexpr float kNearTie = 4e-3F;

}  // namespace fathom::tolerances
