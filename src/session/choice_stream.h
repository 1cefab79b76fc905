#pragma once
// One answer on its way from tokens to text: whole characters, thinking and tool calls split off,
// ended before the first stop string. Pure; one thread at a time.
//
// Stop strings are looked for in the content alone: not in the thinking, nor in a tool call.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "session/session.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace fathom::session {

struct StreamOptions {
  text::ReasoningSplitter::Start reasoning = text::ReasoningSplitter::Start::kContent;
  text::ToolCallFormat tool_calls = text::ToolCallFormat::kNone;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;      // end the answer and are no part of its text
  std::vector<int32_t> visible_special;  // control tokens that are text here: tags of tool calls
  bool logprobs = false;
  engine::RequestId id = 0;  // of the answer; names its tool calls
};

class ChoiceStream {
 public:
  // `tokenizer` must outlive it.
  ChoiceStream(const text::Tokenizer& tokenizer, StreamOptions options);

  TextDelta Push(std::span<const engine::TokenOutput> tokens);
  // What was held back, at the end of the answer.
  TextDelta Flush();

  // A stop string was found; nothing more comes.
  bool stopped() const { return stopped_ >= 0; }
  const std::string& stop_text() const;
  int32_t reasoning_tokens() const { return reasoning_tokens_; }
  // At least one tool call, and none cut off.
  bool called_tools() const;

 private:
  void PushText(std::string_view text, TextDelta& delta);
  void PushContent(std::string_view content, TextDelta& delta);
  void TakeToolCalls(text::ToolCallParser::Piece piece, TextDelta& delta);
  void PushPlain(std::string_view content, TextDelta& delta);
  TokenLogprob LogprobOf(const engine::TokenOutput& output) const;

  const text::Tokenizer& tokenizer_;
  const StreamOptions options_;
  text::Detokenizer detokenizer_;
  text::ReasoningSplitter reasoning_;
  text::ToolCallParser tool_calls_;
  text::StopMatcher stops_;
  int32_t stopped_ = -1;
  int32_t reasoning_tokens_ = 0;
};

}  // namespace fathom::session
