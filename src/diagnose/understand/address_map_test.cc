#include "diagnose/understand/address_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/test_util.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;

constexpr std::string_view kBits =
    R"({"schema": "fathom.page-map/1", "address_bits": {"bank": [7, 6], "channel": [[5, 8], 4]}})";
constexpr std::string_view kPages = R"({"schema": "fathom.page-map/1", "page_tokens": 4,
  "page_bytes": 1024, "pages": [{"token": 4, "page": 9, "channel": 1, "bank": 1},
                                {"token": 0, "page": 3, "channel": 0, "bank": 1}]})";

PageMap Parse(std::string_view json) {
  auto map = ParsePageMap(json);
  EXPECT_TRUE(map) << map.error().message;
  return map.value_or(PageMap{});
}

double At(const AddressHeatMap& heat, uint32_t channel, uint32_t bank, size_t column) {
  return heat.values[(size_t{channel} * heat.num_banks + bank) * heat.num_columns + column];
}

TEST(PageMap, AddressBitsMayBeHashed) {
  // 0x40: bank bit 6; 0x110: address bits 8 and 4, so channel 0b11.
  const Timeline t = ReadText(
      "{\"token_id\": 5, \"emit_ts\": 10, \"hbm_addr\": 64, \"latency\": 300}\n"
      "{\"token_id\": 5, \"emit_ts\": 20, \"hbm_addr\": \"0x110\", \"latency\": 500}\n"
      "{\"token_id\": 7, \"emit_ts\": 30, \"hbm_addr\": \"0x110\", \"latency\": 700}\n"
      "{\"token_id\": 7, \"emit_ts\": 40, \"hbm_addr\": \"0x110\", \"latency\": 900}\n");
  const auto heat = MakeAddressHeatMap(t, Parse(kBits), false);
  ASSERT_TRUE(heat) << heat.error().message;
  EXPECT_EQ(heat->num_channels, 4u);
  EXPECT_EQ(heat->num_banks, 4u);
  EXPECT_EQ(heat->num_columns, 3u);  // tokens 5, 6, 7
  EXPECT_EQ(At(*heat, 0, 1, 0), 1);
  EXPECT_EQ(At(*heat, 3, 0, 0), 1);
  EXPECT_EQ(At(*heat, 3, 0, 2), 2);
  EXPECT_TRUE(std::isnan(At(*heat, 3, 0, 1)));
  EXPECT_EQ(heat->placed, 4u);

  const auto latency = MakeAddressHeatMap(t, Parse(kBits), true);
  ASSERT_TRUE(latency);
  EXPECT_EQ(At(*latency, 3, 0, 2), 800);

  // Two columns: tokens 5 and 6 share the first, whose value is the mean of one token.
  const auto binned = MakeAddressHeatMap(t, Parse(kBits), false, 2);
  ASSERT_TRUE(binned);
  EXPECT_EQ(binned->tokens_per_column, 2);
  EXPECT_EQ(At(*binned, 3, 0, 0), 0.5);
  EXPECT_EQ(At(*binned, 3, 0, 1), 2);  // token 7 alone
}

TEST(PageMap, PagesPlaceTokens) {
  const Timeline t = ReadText("token_id,emit_ts,hbm_addr,latency\n3,10,0,5\n4,20,0,5\n99,30,0,5\n");
  const auto heat = MakeAddressHeatMap(t, Parse(kPages), false);
  ASSERT_TRUE(heat) << heat.error().message;
  EXPECT_EQ(At(*heat, 0, 1, 0), 1);
  EXPECT_EQ(At(*heat, 1, 1, 1), 1);
  EXPECT_EQ(heat->placed, 2u);
  EXPECT_EQ(heat->unplaced, 1u);  // no page holds token 99
}

TEST(PageMap, WithoutAccessesReadsAreModelled) {
  const auto heat = MakeAddressHeatMap(Timeline{}, Parse(kPages), false);
  ASSERT_TRUE(heat) << heat.error().message;
  EXPECT_EQ(heat->value_kind, AddressValue::kBytes);
  EXPECT_EQ(heat->num_columns, 8u);
  EXPECT_EQ(At(*heat, 0, 1, 3), 1024);
  EXPECT_TRUE(std::isnan(At(*heat, 1, 1, 3)));  // the second page begins at token 4
  EXPECT_EQ(At(*heat, 1, 1, 4), 1024);
  EXPECT_EQ(At(*heat, 0, 1, 7), 1024);

  const auto bits = MakeAddressHeatMap(Timeline{}, Parse(kBits), false);
  ASSERT_FALSE(bits);
  EXPECT_THAT(bits.error().message, HasSubstr("need recorded accesses"));
}

struct Bad {
  const char* json;
  const char* says;
};
class BadPageMap : public testing::TestWithParam<Bad> {};

TEST_P(BadPageMap, IsNamed) {
  const auto map = ParsePageMap(GetParam().json);
  ASSERT_FALSE(map);
  EXPECT_THAT(map.error().message, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadPageMap,
    testing::Values(
        Bad{"token,page\n1,2\n", "found no JSON"}, Bad{"[]", "found array"},
        Bad{R"({"schema": "x"})", "found \"x\""},
        Bad{R"({"schema": "fathom.page-map/1"})", "found neither"},
        Bad{R"({"schema": "fathom.page-map/1", "colour": 1})", "unknown key 'colour'"},
        Bad{R"({"schema": "fathom.page-map/1", "address_bits": {"bank": [64], "channel": []}})",
            "bit from 0 to 63, found 64"},
        Bad{R"({"schema": "fathom.page-map/1", "address_bits": {"bank": [7]}})",
            "address_bits.channel"},
        Bad{R"({"schema": "fathom.page-map/1", "page_tokens": 4, "pages": []})",
            "at least one page"},
        Bad{R"({"schema": "fathom.page-map/1", "pages": [{}]})", "\"page_tokens\""},
        Bad{R"({"schema": "fathom.page-map/1", "page_tokens": 4,
               "pages": [{"token": 0, "page": 1, "channel": 2}]})",
            "pages[0]: expected \"bank\""},
        Bad{R"({"schema": "fathom.page-map/1", "page_tokens": 4,
               "pages": [{"token": 0, "page": 1, "channel": 0, "bank": 0},
                         {"token": 2, "page": 2, "channel": 0, "bank": 0}]})",
            "do not overlap"}));

}  // namespace
}  // namespace fathom::diagnose
