// Any bytes as text: encoding and decoding give it back, and the streaming readers give the same
// result for the whole text as for the pieces it comes in. The first byte chooses the pieces.
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/test_tokenizer.h"
#include "text/tool_calls.h"
#include "text/unicode.h"

namespace fathom::text {
namespace {

void CheckTokens(std::string_view text) {
  static const auto* const kTokenizer = new Tokenizer(TestTokenizer());
  const std::vector<int32_t> ids = kTokenizer->Encode(text, {.add_special_tokens = false}).value();
  const DecodeOptions all{.skip_special_tokens = false};
  const std::string decoded = kTokenizer->Decode(ids, all);
  FATHOM_CHECK(decoded == ReplaceInvalidUtf8(text));
  Detokenizer detokenizer(*kTokenizer, all);
  std::string streamed;
  for (const int32_t id : ids) streamed += detokenizer.Push(id);
  FATHOM_CHECK(streamed + detokenizer.Flush() == decoded);
}

// What a reader made of a text, as one string.
std::string Read(std::string_view text, size_t piece, ReasoningSplitter::Start start,
                 ToolCallFormat format) {
  ReasoningSplitter reasoning(start);
  ToolCallParser tools(format);
  StopMatcher stops({"END", "aab", "</think>\n\n.", "\n\n\n"});
  std::string thought, content, calls, stopped;
  int32_t stop = -1;
  const auto take_calls = [&](const ToolCallParser::Piece& out) {
    content += out.content;
    for (const ToolCallPiece& call : out.calls) {
      if (!call.name.empty()) calls += "\x01" + call.name + "\x02";
      calls += call.arguments;
    }
  };
  const auto take = [&](const ReasoningSplitter::Piece& out) {
    thought += out.reasoning;
    take_calls(tools.Push(out.content));
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    const std::string_view part = text.substr(at, piece);
    take(reasoning.Push(part));
    const auto out = stops.Push(part);
    stopped += out.text;
    if (out.stopped >= 0) stop = out.stopped;
  }
  take(reasoning.Flush());
  take_calls(tools.Flush());
  stopped += stops.Flush();
  return thought + "\x03" + content + "\x03" + calls + "\x03" + stopped + std::to_string(stop);
}

}  // namespace
}  // namespace fathom::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::text;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = 1 + data[0] % 16;
  CheckTokens(text);
  const ReasoningSplitter::Start starts[] = {ReasoningSplitter::Start::kContent,
                                             ReasoningSplitter::Start::kThinking,
                                             ReasoningSplitter::Start::kMayThink};
  const auto start = starts[(data[0] >> 4) % 3];
  const auto format = data[0] >= 128 ? ToolCallFormat::kFenced : ToolCallFormat::kPlain;
  FATHOM_CHECK(Read(text, piece, start, format) == Read(text, text.size() + 1, start, format));
  return 0;
}
