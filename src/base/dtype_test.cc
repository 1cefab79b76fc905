#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fathom {
namespace {

TEST(DType, HalfRoundTripsEveryBitPattern) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float value = F16ToF32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
    } else {
      EXPECT_EQ(F32ToF16(value), half) << i;
    }
  }
}

TEST(DType, Fp8RoundTripsEveryBitPattern) {
  for (uint32_t i = 0; i < 0x100; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    const float value = F8E4M3ToF32(byte);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F8E4M3ToF32(F32ToF8E4M3(value))));
    } else {
      EXPECT_EQ(F32ToF8E4M3(value), byte) << i;
    }
  }
}

// The nearest representable value by search, ties to the even code: independent of the bit tricks.
TEST(DType, Fp8RoundsToNearestEven) {
  for (int step = 0; step < 200000; ++step) {
    const float value = std::ldexp(static_cast<float>(step) / 100000.0f, 9) / 1.1f;
    int best = 0;
    for (int code = 1; code < 0x7f; ++code) {
      const float error = std::fabs(F8E4M3ToF32(static_cast<uint8_t>(code)) - value);
      const float best_error = std::fabs(F8E4M3ToF32(static_cast<uint8_t>(best)) - value);
      if (error < best_error || (error == best_error && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(F32ToF8E4M3(value), best) << value;
  }
}

TEST(DType, SpecialValues) {
  EXPECT_EQ(F32ToF8E4M3(1e9f), 0x7e);
  EXPECT_EQ(F32ToF8E4M3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToBf16(1.00390625f), 0x3f80);  // a tie goes to even
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DType, NamesRoundTrip) {
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI64}) {
    EXPECT_EQ(DTypeFromName(NameOf(t)), t);
  }
  EXPECT_FALSE(DTypeFromName("F4").has_value());
}

}  // namespace
}  // namespace fathom
