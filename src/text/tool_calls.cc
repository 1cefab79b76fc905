#include "text/tool_calls.h"

#include <algorithm>
#include <utility>

#include "text/holdback.h"

namespace fathom::text {
namespace {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSep = "<｜tool▁sep｜>";
constexpr std::string_view kFence = "```";
constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Where the arguments in `text` end, if the call ended with it: before white space, and before a
// closing fence with white space around it.
size_t ArgumentsEnd(std::string_view text, bool fenced) {
  const auto trimmed = [&](size_t size) {
    const size_t last = text.substr(0, size).find_last_not_of(kSpace);
    return last == std::string_view::npos ? 0 : last + 1;
  };
  const size_t end = trimmed(text.size());
  if (!fenced || !text.substr(0, end).ends_with(kFence)) return end;
  return trimmed(end - kFence.size());
}

// As ArgumentsEnd, for a text that goes on: a fence may still be incomplete.
size_t CertainArguments(std::string_view text, bool fenced) {
  size_t end = text.size() - PartialSuffix(text, kCallEnd);
  const std::string_view before = text.substr(0, end);
  size_t certain = ArgumentsEnd(before, fenced);
  if (fenced && end == text.size()) {
    const size_t ticks = PartialSuffix(before, kFence);
    if (ticks > 0) certain = std::min(certain, ArgumentsEnd(before.substr(0, end - ticks), false));
  }
  return certain;
}

}  // namespace

ToolCallParser::Piece ToolCallParser::Push(std::string_view text) {
  Piece out;
  if (format_ == ToolCallFormat::kNone) {
    out.content = text;
    return out;
  }
  held_ += text;
  Run(false, out);
  return out;
}

ToolCallParser::Piece ToolCallParser::Flush() {
  Piece out;
  Run(true, out);
  return out;
}

void ToolCallParser::Run(bool end, Piece& out) {
  for (bool more = true; more;) {
    switch (state_) {
      case State::kContent:
        more = Content(end, out);
        break;
      case State::kBetween:
        more = Between(end);
        break;
      case State::kHeader:
        more = Header(end, out);
        break;
      case State::kArguments:
        more = Arguments(end, out);
        break;
    }
  }
}

bool ToolCallParser::Content(bool end, Piece& out) {
  const size_t begin = held_.find(kCallsBegin);
  if (begin == std::string::npos) {
    const size_t certain = held_.size() - (end ? 0 : PartialSuffix(held_, kCallsBegin));
    out.content.append(held_, 0, certain);
    held_.erase(0, certain);
    return false;
  }
  out.content.append(held_, 0, begin);
  held_.erase(0, begin + kCallsBegin.size());
  state_ = State::kBetween;
  return true;
}

bool ToolCallParser::Between(bool end) {
  held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
  const std::string_view held = held_;
  if (held.starts_with(kCallBegin)) {
    held_.erase(0, kCallBegin.size());
    state_ = State::kHeader;
    return true;
  }
  if (held.starts_with(kCallsEnd)) {
    held_.erase(0, kCallsEnd.size());
    state_ = State::kContent;
    return true;
  }
  if (!end && (kCallBegin.starts_with(held) || kCallsEnd.starts_with(held))) return false;
  state_ = State::kContent;  // no call after all
  return !held_.empty();
}

// Up to where the arguments begin. A header that is none (no separator before the call ends) is
// content.
bool ToolCallParser::Header(bool end, Piece& out) {
  const std::string_view held = held_;
  const size_t call_end = held.find(kCallEnd);
  const size_t sep = held.find(kSep);
  if (sep == std::string_view::npos || call_end < sep) {
    if (call_end == std::string_view::npos && !end) return false;
    const size_t size = call_end == std::string_view::npos ? held.size() : call_end;
    out.content.append(held_, 0, size);
    held_.erase(0, call_end == std::string_view::npos ? size : size + kCallEnd.size());
    state_ = call_end == std::string_view::npos ? State::kContent : State::kBetween;
    return call_end != std::string_view::npos;
  }
  std::string name(Trimmed(held.substr(0, sep)));
  size_t begin = sep + kSep.size();
  if (format_ == ToolCallFormat::kFenced) {
    // NAME and an opening fence, each on a line of its own; a model may leave the fence out.
    const size_t line = held.find('\n', begin);
    const size_t stop = std::min(line, call_end);
    if (stop == std::string_view::npos && !end) return false;
    name = Trimmed(held.substr(begin, stop - begin));
    begin = std::min(stop, held.size());
    const size_t next = std::min(held.find_first_not_of(kSpace, begin), held.size());
    const std::string_view rest = held.substr(next);
    if (rest.size() < kFence.size() && kFence.starts_with(rest) && !end) return false;
    if (rest.starts_with(kFence)) {
      const size_t fence_line = held.find('\n', next);
      if (fence_line == std::string_view::npos && call_end == std::string_view::npos && !end) {
        return false;
      }
      begin = std::min({fence_line, call_end, held.size()});
    }
  }
  // White space before the arguments is not theirs, and there may be more of it to come.
  begin = std::min(held.find_first_not_of(kSpace, begin), held.size());
  if (begin == held.size() && !end) return false;
  held_.erase(0, begin);
  out.calls.push_back({++index_, std::move(name), ""});
  state_ = State::kArguments;
  return true;
}

bool ToolCallParser::Arguments(bool end, Piece& out) {
  const bool fenced = format_ == ToolCallFormat::kFenced;
  const std::string_view held = held_;
  const size_t call_end = held.find(kCallEnd);
  const bool complete = call_end != std::string_view::npos;
  const size_t size = complete ? ArgumentsEnd(held.substr(0, call_end), fenced)
                      : end    ? ArgumentsEnd(held, fenced)
                               : CertainArguments(held, fenced);
  if (size > 0) {
    if (out.calls.empty() || out.calls.back().index != index_)
      out.calls.push_back({index_, "", ""});
    out.calls.back().arguments += held.substr(0, size);
  }
  if (complete) {
    ++num_complete_;
    held_.erase(0, call_end + kCallEnd.size());
    state_ = State::kBetween;
    return true;
  }
  held_.erase(0, end ? held_.size() : size);
  cut_off_ = end;
  if (end) state_ = State::kContent;
  return false;
}

}  // namespace fathom::text
