#include "session/choice_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_tokenizer.h"

namespace fathom::session {
namespace {

using Start = text::ReasoningSplitter::Start;

class ChoiceStreamTest : public testing::Test {
 protected:
  int32_t Id(std::string_view token) const { return tokenizer_.IdOf(token).value(); }
  std::vector<int32_t> Encode(std::string_view text) const {
    return tokenizer_.Encode(text, {.add_special_tokens = false}).value();
  }

  // Everything that a stream gives for these tokens, `group` of them a call.
  TextDelta Run(ChoiceStream& stream, const std::vector<int32_t>& tokens, size_t group = 1) {
    TextDelta all;
    std::vector<engine::TokenOutput> outputs;
    for (const int32_t token : tokens)
      outputs.push_back({.token = token, .logprob = -1, .top = {}});
    for (size_t begin = 0; begin < outputs.size() && !stream.stopped(); begin += group) {
      const size_t n = std::min(group, outputs.size() - begin);
      Append(all, stream.Push(std::span(outputs).subspan(begin, n)));
    }
    Append(all, stream.Flush());
    return all;
  }

  static void Append(TextDelta& all, TextDelta delta) {
    all.content += delta.content;
    all.reasoning_content += delta.reasoning_content;
    for (TokenLogprob& logprob : delta.logprobs) all.logprobs.push_back(std::move(logprob));
    for (ToolCallDelta& call : delta.tool_calls) {
      if (static_cast<size_t>(call.index) == all.tool_calls.size()) {
        all.tool_calls.push_back(std::move(call));
        continue;
      }
      EXPECT_TRUE(call.id.empty() && call.name.empty());
      all.tool_calls[static_cast<size_t>(call.index)].arguments += call.arguments;
    }
    all.num_tokens += delta.num_tokens;
  }

  text::Tokenizer tokenizer_ = text::TestTokenizer();
};

TEST_F(ChoiceStreamTest, NeverSplitsACharacterAndHidesControlTokens) {
  std::vector<int32_t> tokens = Encode("a 中 b");
  tokens.push_back(Id("<｜end▁of▁sentence｜>"));
  ChoiceStream stream(tokenizer_, {});
  std::string text;
  for (const int32_t token : tokens) {
    const engine::TokenOutput output{.token = token, .top = {}};
    const TextDelta delta = stream.Push({&output, 1});
    EXPECT_EQ(delta.num_tokens, 1);
    for (const char c : delta.content) text += c;
    EXPECT_TRUE(delta.content.empty() || (static_cast<uint8_t>(delta.content[0]) & 0xC0) != 0x80);
  }
  EXPECT_EQ(text, "a 中 b");
}

TEST_F(ChoiceStreamTest, AStopStringEndsTheContentBeforeIt) {
  ChoiceStream stream(tokenizer_, {.stop = {"never", "END"}});
  const TextDelta all = Run(stream, Encode("one two END three"));
  EXPECT_EQ(all.content, "one two ");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.stop_text(), "END");
  EXPECT_LT(all.num_tokens, static_cast<int32_t>(Encode("one two END three").size()));
}

TEST_F(ChoiceStreamTest, WhatMightHaveBeenAStopStringComesAtTheEnd) {
  ChoiceStream stream(tokenizer_, {.stop = {"END!"}});
  EXPECT_EQ(Run(stream, Encode("the END")).content, "the END");
  EXPECT_FALSE(stream.stopped());
}

TEST_F(ChoiceStreamTest, AStopTokenIsNoText) {
  ChoiceStream stream(tokenizer_, {.stop_tokens = {'b'}});
  std::vector<int32_t> tokens = Encode("a");
  tokens.push_back('b');
  EXPECT_EQ(Run(stream, tokens).content, "a");
}

TEST_F(ChoiceStreamTest, ThinkingIsSplitOffAndNotSearchedForStopStrings) {
  ChoiceStream stream(tokenizer_,
                      {.reasoning = Start::kThinking, .stop = {"STOP"}, .visible_special = {}});
  const TextDelta all = Run(stream, Encode("I must not STOP\n</think>\n\nanswer STOP more"));
  EXPECT_EQ(all.reasoning_content, "I must not STOP");
  EXPECT_EQ(all.content, "answer ");
  EXPECT_EQ(stream.stop_text(), "STOP");
  EXPECT_GT(stream.reasoning_tokens(), 10);
  EXPECT_LT(stream.reasoning_tokens(), all.num_tokens);
}

TEST_F(ChoiceStreamTest, ToolCallsAreSplitOffWithTheirLastCharacters) {
  const std::string text =
      "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
      "{\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  for (const size_t group : {1, 3, 1000}) {
    ChoiceStream stream(
        tokenizer_,
        {.tool_calls = text::ToolCallFormat::kPlain, .stop = {"Rome", "look.x"}, .id = 31});
    const TextDelta all = Run(stream, Encode(text), group);
    EXPECT_EQ(all.content, "Let me look.");
    ASSERT_EQ(all.tool_calls.size(), 2u);
    EXPECT_EQ(all.tool_calls[0].name, "weather");
    EXPECT_EQ(all.tool_calls[0].arguments, "{\"city\": \"Rome\"}");
    EXPECT_EQ(all.tool_calls[0].id, "call_1f_0");
    EXPECT_EQ(all.tool_calls[1].name, "time");
    EXPECT_EQ(all.tool_calls[1].arguments, "{}");
    EXPECT_TRUE(stream.called_tools());
    EXPECT_FALSE(stream.stopped());
  }
}

TEST_F(ChoiceStreamTest, LogprobsNameTheBytesOfTheirTokens) {
  ChoiceStream stream(tokenizer_, {.logprobs = true});
  const TextDelta all = Run(stream, Encode("abc中"));
  ASSERT_EQ(all.logprobs.size(), 4u);
  EXPECT_EQ(all.logprobs[0].bytes, "abc");
  EXPECT_EQ(all.logprobs[1].bytes, "\xE4");
  EXPECT_EQ(all.logprobs[0].logprob, -1);
}

// However the tokens come in calls, the result is the same.
TEST_F(ChoiceStreamTest, AnyGroupingGivesTheSameTexts) {
  std::mt19937 random(3);
  const std::vector<std::string> parts = {"</think>", "<think>", "\n",         "中",        "EN",
                                          "D",        "abc",     "<｜User｜>", "e\xCC\x81", " "};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % parts.size()];
    const StreamOptions options{.reasoning = static_cast<Start>(random() % 3),
                                .stop = {"END", "中 "}};
    ChoiceStream one(tokenizer_, options);
    const TextDelta expected = Run(one, Encode(text), 1);
    for (const size_t group : {2, 5, 100}) {
      ChoiceStream other(tokenizer_, options);
      const TextDelta all = Run(other, Encode(text), group);
      ASSERT_EQ(all.content, expected.content) << text;
      ASSERT_EQ(all.reasoning_content, expected.reasoning_content) << text;
      ASSERT_EQ(other.stop_text(), one.stop_text()) << text;
    }
  }
}

}  // namespace
}  // namespace fathom::session
