#include "diagnose/report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "diagnose/report/picture.h"
#include "diagnose/report/png.h"
#include "diagnose/report/text_report.h"
#include "diagnose/rules/synthetic_timeline.h"

namespace fathom::diagnose {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Svg, NamesCannotBecomeMarkup) {
  Svg svg(100, "a <b> & \"c\"", "en");
  svg.Text(1, 2, "</text><script>\x01");
  svg.Rect(0, 0, 1, 1, "#000000", "<tip>");
  const std::string text = svg.Finish(20);
  EXPECT_THAT(text, HasSubstr("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
  EXPECT_THAT(text, HasSubstr("&lt;/text&gt;&lt;script&gt; </text>"));
  EXPECT_THAT(text, HasSubstr("<title>&lt;tip&gt;</title></rect>"));
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
}

TEST(Svg, TextIsCutBetweenCharacters) {
  EXPECT_EQ(FitText("short", 100, 10), "short");
  EXPECT_EQ(FitText("a longer name", 40, 10), "a lon\u2026");
  EXPECT_EQ(FitText("a longer name", 15, 10), "");  // fewer than three letters say nothing
  EXPECT_EQ(FitText("\u6ce8\u610f\u529b\u5185\u6838", 40, 10), "\u6ce8\u610f\u529b\u2026");
}

TEST(Svg, LinesBreakAtSpacesAndBetweenIdeographs) {
  EXPECT_THAT(WrapText("one two three", 50, 10), ElementsAre("one two", "three"));
  EXPECT_THAT(WrapText("\u4e00\u4e8c\u4e09\u56db", 25, 10),
              ElementsAre("\u4e00\u4e8c", "\u4e09\u56db"));
  EXPECT_THAT(WrapText("", 50, 10), ElementsAre());
}

TEST(Svg, ColoursMix) {
  EXPECT_EQ(MixColours("#000000", "#ff8000", 0.5), "#804000");
  EXPECT_EQ(MixColours("#000000", "#ff8000", 7), "#ff8000");
}

TEST(Pictures, SyntheticDecodeIsDrawn) {
  const Diagnosis d =
      Diagnose(MakeSynthetic({.decode_steps = 24, .layers = 4}), Thresholds::Default());
  const std::string heat = HeatMapSvg(d, Language::kEnglish);
  EXPECT_THAT(heat, HasSubstr(">decode step</text>"));
  EXPECT_THAT(heat, HasSubstr("layer 3, decode step"));
  EXPECT_THAT(heat, HasSubstr("kernel class attention, decode step"));
  // Without recorded stacks the flame graph says what it would need.
  EXPECT_THAT(FlameSvg(d, Language::kEnglish), HasSubstr("no sampled stacks"));
  EXPECT_THAT(FlameSvg(d, Language::kChinese), HasSubstr("xml:lang=\"zh\""));
}

TEST(Png, IsDrawnAtItsScale) {
  Svg svg(40, "square", "en");
  svg.Rect(0, 0, 40, 10, "#ff0000");
  const auto png = PngFromSvg(svg.Finish(10), Language::kEnglish, 3);
  ASSERT_TRUE(png) << png.error().message;
  EXPECT_THAT(*png, testing::StartsWith("\x89PNG\r\n"));
  // The header's width and height, big-endian.
  EXPECT_EQ(png->substr(16, 8), std::string("\0\0\0\x78\0\0\0\x1e", 8));
}

TEST(Png, RefusesWhatCairoCannotHold) {
  Svg svg(1000, "tall", "en");
  const auto png = PngFromSvg(svg.Finish(20'000), Language::kEnglish, 2);
  ASSERT_FALSE(png);
  EXPECT_THAT(png.error().message, HasSubstr("at most 30000 pixels"));
}

TEST(BreakLines, KeepsWordsEscapesAndIndentation) {
  EXPECT_EQ(BreakLines("  - one two three", 10, 4), "  - one\n    two\n    three");
  EXPECT_EQ(BreakLines("\033[31mred\033[0m word", 8, 0), "\033[31mred\033[0m word");
  EXPECT_EQ(BreakLines("\u4e00\u4e8c\u4e09\u56db", 4, 0), "\u4e00\u4e8c\n\u4e09\u56db");
  // A closing mark does not begin a line, and a bullet does not end one.
  EXPECT_EQ(BreakLines("\u4e00\u4e8c\u3001\u4e09", 4, 0), "\u4e00\n\u4e8c\u3001\n\u4e09");
  EXPECT_EQ(BreakLines("- unbreakable-word", 8, 2), "- unbreakable-word");
  EXPECT_EQ(BreakLines("unbreakable-word", 4, 2), "unbreakable-word");
  EXPECT_EQ(BreakLines("takes 12.5 ms, 3 steps", 12, 0), "takes\n12.5 ms, 3\nsteps");
  EXPECT_EQ(BreakLines("", 4, 2), "");
}

}  // namespace
}  // namespace fathom::diagnose
