#include "session/choice_stream.h"

#include <algorithm>
#include <utility>

namespace fathom::session {
namespace {

bool Holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

ChoiceStream::ChoiceStream(const text::Tokenizer& tokenizer, StreamOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      detokenizer_(tokenizer, {.skip_special_tokens = false}),  // Push leaves them out, or not
      reasoning_(options_.reasoning),
      tool_calls_(options_.tool_calls),
      stops_(options_.stop) {}

TextDelta ChoiceStream::Push(std::span<const engine::TokenOutput> tokens) {
  TextDelta delta;
  for (const engine::TokenOutput& output : tokens) {
    if (stopped()) break;
    ++delta.num_tokens;
    if (options_.logprobs) delta.logprobs.push_back(LogprobOf(output));
    const bool was_thinking = reasoning_.thinking();
    const bool hidden =
        Holds(options_.stop_tokens, output.token) ||
        (tokenizer_.IsSpecial(output.token) && !Holds(options_.visible_special, output.token));
    if (!hidden) PushText(detokenizer_.Push(output.token), delta);
    if (was_thinking || reasoning_.thinking()) ++reasoning_tokens_;
  }
  return delta;
}

TextDelta ChoiceStream::Flush() {
  TextDelta delta;
  if (stopped()) return delta;
  PushText(detokenizer_.Flush(), delta);
  const text::ReasoningSplitter::Piece piece = reasoning_.Flush();
  delta.reasoning_content += piece.reasoning;
  PushContent(piece.content, delta);
  if (stopped()) return delta;
  TakeToolCalls(tool_calls_.Flush(), delta);
  if (!stopped()) delta.content += stops_.Flush();
  return delta;
}

void ChoiceStream::PushText(std::string_view text, TextDelta& delta) {
  if (text.empty()) return;
  const text::ReasoningSplitter::Piece piece = reasoning_.Push(text);
  delta.reasoning_content += piece.reasoning;
  PushContent(piece.content, delta);
}

void ChoiceStream::PushContent(std::string_view content, TextDelta& delta) {
  if (content.empty()) return;
  if (options_.tool_calls == text::ToolCallFormat::kNone) {
    PushPlain(content, delta);
  } else {
    TakeToolCalls(tool_calls_.Push(content), delta);
  }
}

void ChoiceStream::TakeToolCalls(text::ToolCallParser::Piece piece, TextDelta& delta) {
  PushPlain(piece.content, delta);
  if (stopped()) return;
  if (!piece.calls.empty()) {  // no stop string goes on over a call
    delta.content += stops_.Flush();
    stops_ = text::StopMatcher(options_.stop);
  }
  for (text::ToolCallPiece& call : piece.calls) {
    ToolCallDelta& out = delta.tool_calls.emplace_back();
    out.index = call.index;
    if (!call.name.empty()) out.id = fmt::format("call_{:x}_{}", options_.id, call.index);
    out.name = std::move(call.name);
    out.arguments = std::move(call.arguments);
  }
}

void ChoiceStream::PushPlain(std::string_view content, TextDelta& delta) {
  if (content.empty()) return;
  text::StopMatcher::Result result = stops_.Push(content);
  delta.content += result.text;
  stopped_ = result.stopped;
}

const std::string& ChoiceStream::stop_text() const {
  static const std::string kNone;
  return stopped() ? options_.stop[static_cast<size_t>(stopped_)] : kNone;
}

bool ChoiceStream::called_tools() const {
  return tool_calls_.num_complete() > 0 && !tool_calls_.cut_off();
}

TokenLogprob ChoiceStream::LogprobOf(const engine::TokenOutput& output) const {
  const auto text_of = [this](int32_t token, float logprob) {
    return TokenText{
        .token = token, .bytes = std::string(tokenizer_.TokenBytes(token)), .logprob = logprob};
  };
  TokenLogprob result{text_of(output.token, output.logprob), {}};
  for (const engine::TopLogprob& top : output.top) {
    result.top.push_back(text_of(top.token, top.logprob));
  }
  return result;
}

}  // namespace fathom::session
