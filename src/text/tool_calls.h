#pragma once
// Reads the tool calls of an answer while it streams. Formats (text/chat_template.h):
//   kFenced
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>
//   kPlain
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>
// Arguments are passed on as they come; only what may be the fence or the tag that ends them is
// held back, and given out when it turns out to be neither. However the answer is cut into pieces,
// the deltas join to the same content, names and arguments.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace fathom::text {

struct ToolCallPiece {
  int32_t index = 0;      // of the call in the answer
  std::string name;       // with the first piece of a call, then empty
  std::string arguments;  // to be appended
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolCallFormat format) : format_(format) {}

  struct Piece {
    std::string content;
    std::vector<ToolCallPiece> calls;
  };

  Piece Push(std::string_view text);
  // The rest, at the end of the answer: the arguments of a call that was cut off as far as they
  // came, and as content what never became a call.
  Piece Flush();

  // Calls that are complete, and whether the answer ended inside one.
  int32_t num_complete() const { return num_complete_; }
  bool cut_off() const { return cut_off_; }

 private:
  enum class State : uint8_t { kContent, kBetween, kHeader, kArguments };

  // Each consumes what it can from the front of held_; true when it did and there may be more.
  bool Content(bool end, Piece& out);
  bool Between(bool end);
  bool Header(bool end, Piece& out);
  bool Arguments(bool end, Piece& out);
  void Run(bool end, Piece& out);

  ToolCallFormat format_;
  State state_ = State::kContent;
  std::string held_;
  int32_t index_ = -1;
  int32_t num_complete_ = 0;
  bool cut_off_ = false;
};

}  // namespace fathom::text
