#include "text/reasoning.h"

#include <algorithm>

#include "text/holdback.h"

namespace fathom::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kLineEnds = "\r\n";

}  // namespace

ReasoningSplitter::ReasoningSplitter(Start start)
    : state_(start == Start::kContent    ? State::kContent
             : start == Start::kThinking ? State::kOpened
                                         : State::kUndecided),
      began_by_template_(start == Start::kThinking) {}

ReasoningSplitter::Piece ReasoningSplitter::Push(std::string_view text) {
  held_ += text;
  Piece out;
  Step(false, out);
  return out;
}

ReasoningSplitter::Piece ReasoningSplitter::Flush() {
  Piece out;
  Step(true, out);
  return out;
}

// Moves what is certain from held_ to `out`.
void ReasoningSplitter::Step(bool end, Piece& out) {
  if (state_ == State::kUndecided) {
    const size_t begin = held_.find_first_not_of(" \t\r\n");
    const std::string_view rest =
        begin == std::string::npos ? std::string_view() : std::string_view(held_).substr(begin);
    if (rest.starts_with(kOpen)) {
      held_.erase(0, begin + kOpen.size());
      state_ = State::kOpened;
    } else if (end || !kOpen.starts_with(rest)) {
      state_ = State::kContent;
    }
  }
  if (state_ == State::kOpened) {
    held_.erase(0, std::min(held_.find_first_not_of(kLineEnds), held_.size()));
    // Some models repeat the tag that the template has written.
    if (began_by_template_ && std::string_view(held_).starts_with(kOpen)) {
      held_.erase(0, kOpen.size());
      began_by_template_ = false;
      held_.erase(0, std::min(held_.find_first_not_of(kLineEnds), held_.size()));
    }
    const bool may_repeat = began_by_template_ && kOpen.starts_with(held_);
    if (!held_.empty() && (end || !may_repeat)) state_ = State::kThinking;
  }
  if (state_ == State::kThinking) {
    const size_t close = held_.find(kClose);
    // Without the tag yet: everything but its possible beginning and the line ends before that.
    size_t certain = close != std::string::npos ? close
                     : end                      ? held_.size()
                                                : held_.size() - PartialSuffix(held_, kClose);
    const size_t last = held_.find_last_not_of(kLineEnds, certain == 0 ? 0 : certain - 1);
    const size_t text = certain == 0 || last == std::string::npos ? 0 : last + 1;
    out.reasoning.append(held_, 0, text);
    if (close != std::string::npos) {
      held_.erase(0, close + kClose.size());
      state_ = State::kClosed;
    } else {
      held_.erase(0, text);
    }
  }
  if (state_ == State::kClosed) {
    held_.erase(0, std::min(held_.find_first_not_of(kLineEnds), held_.size()));
    if (!held_.empty()) state_ = State::kContent;
  }
  if (state_ == State::kContent) {
    out.content += held_;
    held_.clear();
  }
  if (end) held_.clear();
}

}  // namespace fathom::text
