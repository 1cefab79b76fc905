#include "base/strings.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Strings, HumanUnits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(24u << 20), "24.0 MiB");
  EXPECT_EQ(HumanNs(853), "853 ns");
  EXPECT_EQ(HumanNs(-12340), "-12.3 us");
  EXPECT_EQ(HumanNs(999'999), "1.00 ms");
  EXPECT_EQ(HumanNs(INT64_MIN), "-9223372037 s");
  EXPECT_EQ(HumanNs(1'234'000'000), "1.23 s");
}

TEST(Strings, ParseBytes) {
  EXPECT_EQ(ParseBytes("8GiB").value(), 8ull << 30);
  EXPECT_EQ(ParseBytes(" 512 m ").value(), 512ull << 20);
  EXPECT_EQ(ParseBytes("17").value(), 17u);
  for (const char* bad :
       {"", "G", "-1", "1.5G", "12X", "99999999999999999999", "18446744073709551615K"}) {
    const auto result = ParseBytes(bad);
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().message.find("8GiB"), std::string::npos);
  }
}

TEST(Strings, SplitTrimNearest) {
  EXPECT_EQ(Split("a,,b", ',').size(), 3u);
  EXPECT_EQ(Trim(" \t x y\n"), "x y");
  EXPECT_EQ(Nearest("avx51", {"scalar", "avx2", "avx512"}), "avx512");
  EXPECT_EQ(Nearest("zebra", {"scalar", "avx2"}), "");
}

}  // namespace
}  // namespace fathom
