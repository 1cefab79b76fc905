#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/unicode.h"

namespace fathom::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const Regex regex = Regex::Compile(pattern).value();
  RegexScratch scratch;
  RegexIterator iterator(regex, text, scratch);
  std::vector<std::string> found;
  while (true) {
    const Regex::Match match = iterator.Next().value();
    if (!match.found) return found;
    found.emplace_back(text.substr(match.span.begin, match.span.size()));
  }
}

TEST(Regex, ClassesFollowOniguruma) {
  EXPECT_TRUE(Matches("\\s", "\u180e").empty());  // PCRE2 would match
  EXPECT_EQ(Matches("\\s", "\u0085\u3000").size(), 2u);
  EXPECT_EQ(Matches("\\p{L}+", "a\U0001C89Bé中").size(), 2u);  // U+1C89B is unassigned
  EXPECT_THAT(Matches("\\p{L}+", "\u1C89\u1C8A"), ElementsAre("\u1C89\u1C8A"));  // Unicode 16
  EXPECT_THAT(Matches("[^\\s\\p{L}]+", "a \u1C89!\u180e"), ElementsAre("!\u180e"));
  EXPECT_THAT(Matches("\\P{L}", "a1\u1C89"), ElementsAre("1"));
  EXPECT_THAT(Matches("(?i:'s)", "'S'ſ"), ElementsAre("'S", "'ſ"));
}

TEST(Regex, LinesEndAtEveryNewline) { EXPECT_EQ(Matches("a$", "a\na\na").size(), 3u); }

TEST(Regex, EmptyMatchesDoNotLoop) {
  EXPECT_THAT(Matches("a*", "baac"), ElementsAre("", "aa", ""));
  EXPECT_THAT(Matches("x*", "é"), ElementsAre("", ""));
  EXPECT_TRUE(Matches("a+", "").empty());
}

TEST(Regex, WhatMeansSomethingElseIsAnError) {
  for (const char* pattern :
       {"[a&&b]", "[[a]]", "\\h", "\\R", "\\K", "a{1,2}+", "a{2}?", "a{,3}", "(?m:.)", "(?<name>a)",
        "(*UTF)a", "\\p{Greek}", "[\\P{L}]", "[\\S]", "[]a]", "\\", "\\x{", "\\x4", "\\1"}) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex) << pattern;
    EXPECT_EQ(regex.error().code, Code::kUnsupported) << pattern;
    EXPECT_THAT(regex.error().message, HasSubstr("is not supported"));
  }
  EXPECT_EQ(Regex::Compile("(a").error().code, Code::kInvalidArgument);
}

TEST(Regex, RunawayPatternsEnd) {
  const Regex regex = Regex::Compile("(?:a+)+(?:a+)+(?:a+)+[bc]").value();
  RegexScratch scratch;
  const auto match = regex.Find(std::string(200, 'a'), 0, scratch);
  ASSERT_FALSE(match);
  EXPECT_EQ(match.error().code, Code::kResourceExhausted);
}

TEST(Regex, LiteralsAreLiteral) {
  const Regex regex = Regex::CompileLiteral("a.b(").value();
  RegexScratch scratch;
  EXPECT_EQ(regex.Find("axb( a.b(", 0, scratch).value().span, (TextSpan{5, 9}));
}

TEST(Utf8, InvalidPartsAreMaximalSubparts) {
  // Table 3-8 of the Unicode standard, and an overlong form, a surrogate, a value past U+10FFFF.
  EXPECT_EQ(ReplaceInvalidUtf8("a\xF1\x80\x80\xE1\x80\xC2"
                               "b\x80"
                               "c\x80\xBF"
                               "d"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xB8"), "\uFFFD");
  EXPECT_TRUE(IsValidUtf8("aé中😀"));
  EXPECT_FALSE(IsValidUtf8("aaaaaaaaa\xFF"));
}

}  // namespace
}  // namespace fathom::text
