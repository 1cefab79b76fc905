#pragma once
// Splits an answer into thinking and content while it streams. Works on text, so that it does not
// matter whether a tokenizer has <think> as a token; what may be the beginning of a tag is held
// back. However the answer is cut into pieces, the results join to the same two texts.
//
// Line ends next to the tags belong to them: the one reasoning text has none at its ends, and the
// content none at its beginning after </think>.
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::text {

class ReasoningSplitter {
 public:
  enum class Start : uint8_t {
    kContent,   // everything is content, "<think>" too
    kThinking,  // the prompt ended inside <think>
    kMayThink,  // thinking if the answer begins with <think>, after white space at most
  };
  struct Piece {
    std::string reasoning;
    std::string content;
  };

  explicit ReasoningSplitter(Start start);

  // What became certain with `text`.
  Piece Push(std::string_view text);
  // The rest, at the end of the answer. Thinking that was never closed stays thinking.
  Piece Flush();

  bool thinking() const { return state_ == State::kThinking; }

 private:
  enum class State : uint8_t {
    kUndecided,  // nothing yet but white space, or part of <think>
    kOpened,     // after the tag, before the first character of the thinking
    kThinking,
    kClosed,  // after </think>, before the first character of the content
    kContent,
  };

  void Step(bool end, Piece& out);

  State state_;
  bool began_by_template_;
  std::string held_;
};

}  // namespace fathom::text
