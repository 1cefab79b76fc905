#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace fathom::text {
namespace {

struct Cut {
  TextSpan span;
  bool is_match;
};

// Joins the alternating matches and gaps as `behavior` says.
std::vector<TextSpan> Join(const std::vector<Cut>& cuts, SplitBehavior behavior) {
  std::vector<TextSpan> pieces;
  bool previous_match = false;
  const auto add_forward = [&](const Cut& cut, bool join) {
    if (join && !pieces.empty()) {
      pieces.back().end = cut.span.end;
    } else {
      pieces.push_back(cut.span);
    }
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Cut& cut : cuts) {
        if (!cut.is_match) pieces.push_back(cut.span);
      }
      break;
    case SplitBehavior::kIsolated:
      for (const Cut& cut : cuts) pieces.push_back(cut.span);
      break;
    case SplitBehavior::kContiguous:
      for (const Cut& cut : cuts) {
        add_forward(cut, cut.is_match == previous_match);
        previous_match = cut.is_match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Cut& cut : cuts) {
        add_forward(cut, cut.is_match && !previous_match);
        previous_match = cut.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        if (cut->is_match && !previous_match && !pieces.empty()) {
          pieces.back().begin = cut->span.begin;
        } else {
          pieces.push_back(cut->span);
        }
        previous_match = cut->is_match;
      }
      std::reverse(pieces.begin(), pieces.end());
      break;
  }
  return pieces;
}

}  // namespace

void PreTokenizer::AddSplit(Regex regex, SplitBehavior behavior, bool invert) {
  steps_.push_back({std::move(regex), behavior, invert});
}

void PreTokenizer::AddPrefixSpace() { steps_.emplace_back(); }

Status PreTokenizer::Run(size_t index, std::string_view text, Scratch& scratch,
                         FunctionRef<Status(std::string_view)> emit) const {
  const Step& step = steps_[index];
  if (!step.regex) {
    if (text.front() == ' ') return emit(text);
    scratch.prefixed.assign(1, ' ').append(text);
    return emit(scratch.prefixed);
  }
  // Isolated splits, which is nearly all, pass their pieces on as they find them.
  const bool direct = step.behavior == SplitBehavior::kIsolated;
  std::vector<Cut> cuts;
  const auto add = [&](TextSpan span, bool is_match) -> Status {
    if (span.size() == 0 && direct) return {};
    if (direct) return emit(text.substr(span.begin, span.size()));
    cuts.push_back({span, is_match != step.invert});
    return {};
  };
  RegexIterator matches(*step.regex, text, scratch.regex);
  size_t end = 0;
  while (true) {
    FATHOM_ASSIGN_OR_RETURN(const Regex::Match match, matches.Next());
    if (!match.found) break;
    if (match.span.begin != end) FATHOM_TRY(add({end, match.span.begin}, false));
    FATHOM_TRY(add(match.span, true));
    end = match.span.end;
  }
  if (end != text.size()) FATHOM_TRY(add({end, text.size()}, false));
  for (const TextSpan& piece : Join(cuts, step.behavior)) {
    if (piece.size() > 0) FATHOM_TRY(emit(text.substr(piece.begin, piece.size())));
  }
  return {};
}

}  // namespace fathom::text
