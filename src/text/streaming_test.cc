// The streaming readers: each gives the same result however the text is cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/tool_calls.h"

namespace fathom::text {
namespace {

// Cuts `text` in every way of two pieces, into single bytes, and at random.
void ForEachCut(const std::string& text,
                const std::function<void(const std::vector<std::string>&)>& check) {
  for (size_t i = 0; i <= text.size(); ++i) check({text.substr(0, i), text.substr(i)});
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  check(bytes);
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 7;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    check(pieces);
  }
}

struct ReasoningCase {
  ReasoningSplitter::Start start;
  std::string text, reasoning, content;
};

TEST(Reasoning, SplitsHoweverTheTextIsCut) {
  using Start = ReasoningSplitter::Start;
  const std::vector<ReasoningCase> cases = {
      {Start::kThinking, "why\n</think>\n\nbecause", "why", "because"},
      {Start::kThinking, "\nwhy</think>because\n", "why", "because\n"},
      {Start::kThinking, "<think>\nrepeated\n</think>\n\nx", "repeated", "x"},
      {Start::kThinking, "<thin air</think>x", "<thin air", "x"},
      {Start::kThinking, "never closed", "never closed", ""},
      {Start::kThinking, "cut </thin", "cut </thin", ""},
      {Start::kThinking, "a\n\nb </ think> c\n", "a\n\nb </ think> c", ""},
      {Start::kThinking, "</think>\n\n", "", ""},
      {Start::kThinking, "", "", ""},
      {Start::kThinking, "a</think>b</think>c<think>d", "a", "b</think>c<think>d"},
      {Start::kMayThink, "<think>\nwhy\n</think>\n\nbecause", "why", "because"},
      {Start::kMayThink, " \n<think>why</think>b", "why", "b"},
      {Start::kMayThink, "plain", "", "plain"},
      {Start::kMayThink, " \n<thi", "", " \n<thi"},
      {Start::kMayThink, "<thick> x", "", "<thick> x"},
      {Start::kMayThink, "a <think>b</think>", "", "a <think>b</think>"},
      {Start::kMayThink, "  ", "", "  "},
      {Start::kContent, "<think>a</think>b", "", "<think>a</think>b"},
      {Start::kThinking, "中文\n</think>\n\n答案", "中文", "答案"},
  };
  for (const ReasoningCase& want : cases) {
    ForEachCut(want.text, [&](const std::vector<std::string>& pieces) {
      ReasoningSplitter splitter(want.start);
      std::string reasoning, content;
      for (const std::string& piece : pieces) {
        const auto out = splitter.Push(piece);
        reasoning += out.reasoning;
        content += out.content;
      }
      const auto out = splitter.Flush();
      EXPECT_EQ(reasoning + out.reasoning, want.reasoning) << want.text;
      EXPECT_EQ(content + out.content, want.content) << want.text;
    });
  }
}

TEST(Reasoning, GivesOutWhatIsCertain) {
  ReasoningSplitter splitter(ReasoningSplitter::Start::kThinking);
  EXPECT_EQ(splitter.Push("step one").reasoning, "step one");
  EXPECT_EQ(splitter.Push("\n</th").reasoning, "");
  EXPECT_EQ(splitter.Push("ree").reasoning, "\n</three");
  EXPECT_TRUE(splitter.thinking());
  EXPECT_EQ(splitter.Push("</think>ok").content, "ok");
  EXPECT_FALSE(splitter.thinking());
}

TEST(StopStrings, EndBeforeTheFirst) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, before;
    int32_t stopped;
  };
  const std::vector<Case> cases = {
      {{"END"}, "abcENDdef", "abc", 0},
      {{"END"}, "abcENabEN", "abcENabEN", -1},
      {{"aab"}, "aaaab", "aa", 0},
      {{"abcd", "bc"}, "xabcd", "xa", 1},  // "bc" ends first
      {{"bc", "abc"}, "xabcd", "x", 1},    // they end together: the longest
      {{"ababac", "babd"}, "ababababd", "ababa", 1},
      {{"\n\n", "\nUser:"}, "a\nUser:\n\n", "a", 1},
      {{"。"}, "你好。再见", "你好", 0},
      {{""}, "abc", "abc", -1},
      {{}, "abc", "abc", -1},
      {{"x", "x"}, "ax", "a", 0},
  };
  for (const Case& want : cases) {
    ForEachCut(want.text, [&](const std::vector<std::string>& pieces) {
      StopMatcher matcher(want.stops);
      std::string text;
      int32_t stopped = -1;
      for (const std::string& piece : pieces) {
        const auto out = matcher.Push(piece);
        text += out.text;
        if (out.stopped >= 0) stopped = out.stopped;
      }
      EXPECT_EQ(text + matcher.Flush(), want.before) << want.text;
      EXPECT_EQ(stopped, want.stopped) << want.text;
    });
  }
}

// Beside a search that sees the whole text.
TEST(StopStrings, AgreeWithAPlainSearch) {
  std::mt19937 random(9);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(40);
    std::string want = text;
    for (size_t end = 1; end <= text.size() && want == text; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, end).ends_with(stop)) {
          longest = std::max(longest, stop.size());
        }
      }
      if (longest > 0) want = text.substr(0, end - longest);
      if (longest > 0) break;
    }
    StopMatcher matcher(stops);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 5;
      got += matcher.Push(std::string_view(text).substr(at, size)).text;
      at += size;
    }
    EXPECT_EQ(got + matcher.Flush(), want);
  }
}

TEST(StopStrings, HoldBackNoMoreThanNeeded) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("abE").text, "ab");
  EXPECT_EQ(matcher.Push("x").text, "Ex");
}

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool cut_off = false;
  bool operator==(const Parsed&) const = default;
};

Parsed Parse(ToolCallFormat format, const std::vector<std::string>& pieces) {
  ToolCallParser parser(format);
  Parsed parsed;
  const auto take = [&](const ToolCallParser::Piece& piece) {
    parsed.content += piece.content;
    for (const ToolCallPiece& call : piece.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (parsed.calls.size() <= index) {
        EXPECT_EQ(parsed.calls.size(), index);
        parsed.calls.resize(index + 1);
      }
      parsed.calls[index].first += call.name;
      parsed.calls[index].second += call.arguments;
    }
  };
  for (const std::string& piece : pieces) take(parser.Push(piece));
  take(parser.Flush());
  parsed.cut_off = parser.cut_off();
  return parsed;
}

TEST(ToolCalls, SplitHoweverTheTextIsCut) {
  const std::string begin = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>";
  const std::string open = "<｜tool▁call▁begin｜>", close = "<｜tool▁call▁end｜>";
  const std::string sep = "<｜tool▁sep｜>";
  const std::string args = R"({"city": "Paris", "note": "a ``` b"})";
  struct Case {
    ToolCallFormat format;
    std::string text;
    Parsed want;
  };
  const std::vector<Case> cases = {
      {ToolCallFormat::kPlain, begin + open + "f" + sep + args + close + end, {"", {{"f", args}}}},
      {ToolCallFormat::kPlain,
       "Let me see. " + begin + open + "f" + sep + "{}" + close + open + "g" + sep + "[1]" + close +
           end,
       {"Let me see. ", {{"f", "{}"}, {"g", "[1]"}}}},
      {ToolCallFormat::kPlain,
       begin + open + "f" + sep + "{\"a\": 1",
       {"", {{"f", "{\"a\": 1"}}, true}},
      {ToolCallFormat::kPlain,
       begin + open + "f" + sep + "{}" + close + "\n" + end + "done",
       {"done", {{"f", "{}"}}}},
      {ToolCallFormat::kPlain, "a <｜tool▁cal", {"a <｜tool▁cal", {}}},
      {ToolCallFormat::kPlain, begin + "oops", {"oops", {}}},
      {ToolCallFormat::kPlain, begin + open + "no separator" + close + end, {"no separator", {}}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n```json\n" + args + "\n```" + close + end,
       {"", {{"f", args}}}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n```json\n{\n  \"a\": [1]\n}\n```" + close + "\n" +
           open + "function" + sep + "g\n```json\n{}\n```" + close + end,
       {"", {{"f", "{\n  \"a\": [1]\n}"}, {"g", "{}"}}}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n```json\n \n {} \n```" + close + end,
       {"", {{"f", "{}"}}}},
      {ToolCallFormat::kPlain, begin + open + "f" + sep + " \n {} " + close, {"", {{"f", "{}"}}}},
      // Variants that models produce: no fence, no line end before it, one after it.
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n{\"a\": 1}" + close + end,
       {"", {{"f", "{\"a\": 1}"}}}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n```json\n{\"a\": 1}```\n" + close + end,
       {"", {{"f", "{\"a\": 1}"}}}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f\n```json\n{\"a\": \"``",
       {"", {{"f", "{\"a\": \"``"}}, true}},
      {ToolCallFormat::kFenced,
       begin + open + "function" + sep + "f" + close + end,
       {"", {{"f", ""}}}},
      {ToolCallFormat::kNone, begin + open, {begin + open, {}}},
  };
  for (const Case& test : cases) {
    ForEachCut(test.text, [&](const std::vector<std::string>& pieces) {
      const Parsed got = Parse(test.format, pieces);
      EXPECT_EQ(got.content, test.want.content) << test.text;
      EXPECT_EQ(got.calls, test.want.calls) << test.text;
      EXPECT_EQ(got.cut_off, test.want.cut_off) << test.text;
    });
  }
}

TEST(ToolCalls, ArgumentsStream) {
  ToolCallParser parser(ToolCallFormat::kPlain);
  parser.Push("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>");
  const auto piece = parser.Push("{\"a\": ");
  ASSERT_EQ(piece.calls.size(), 1u);
  EXPECT_EQ(piece.calls[0].name, "f");
  EXPECT_EQ(piece.calls[0].arguments, "{\"a\":");
  EXPECT_EQ(parser.Push("1}").calls[0].arguments, " 1}");
  EXPECT_EQ(parser.num_complete(), 0);
  parser.Push("<｜tool▁call▁end｜>");
  EXPECT_EQ(parser.num_complete(), 1);
}

}  // namespace
}  // namespace fathom::text
