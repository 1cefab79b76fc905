#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace fathom::text {
namespace {

// \w as Rust's regex crate has it: Alphabetic, M, Nd, Pc and Join_Control. What is Alphabetic
// without being a letter, a mark or Nl is the circled and squared Latin letters.
constexpr std::string_view kWordClass =
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}"
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]";

// Start of the character that holds the byte at `at`.
size_t CharacterStart(std::string_view text, size_t at) {
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

size_t SpaceBefore(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t at = CharacterStart(text, end - 1);
    if (at < floor || !IsWhiteSpace(DecodeUtf8(text.substr(at)).code_point)) break;
    end = at;
  }
  return end;
}

size_t SpaceAfter(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = DecodeUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code_point)) break;
    begin += step.size;
  }
  return begin;
}

}  // namespace

Result<AddedTokenMatcher> AddedTokenMatcher::Build(std::vector<AddedToken> tokens,
                                                   const std::vector<std::string>& contents) {
  AddedTokenMatcher matcher(std::move(tokens));
  for (size_t i = 0; i < contents.size(); ++i) {
    if (contents[i].empty()) {
      return Err(Code::kInvalidArgument, "added token {} is empty after normalisation",
                 matcher.tokens_[i].id);
    }
    uint32_t at = 0;
    for (const char c : contents[i]) {
      const auto byte = static_cast<uint8_t>(c);
      auto& children = matcher.nodes_[at].children;
      const auto child =
          std::lower_bound(children.begin(), children.end(), std::pair{byte, uint32_t{0}});
      if (child != children.end() && child->first == byte) {
        at = child->second;
        continue;
      }
      at = static_cast<uint32_t>(matcher.nodes_.size());
      children.insert(child, {byte, at});
      matcher.nodes_.emplace_back();
    }
    matcher.nodes_[at].token = static_cast<int32_t>(i);
    matcher.begins_[static_cast<uint8_t>(contents[i].front())] = true;
  }
  const auto single = [](const AddedToken& token) { return token.single_word; };
  if (std::any_of(matcher.tokens_.begin(), matcher.tokens_.end(), single)) {
    FATHOM_ASSIGN_OR_RETURN(matcher.word_, Regex::Compile(kWordClass));
  }
  return matcher;
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text, size_t& size) const {
  int32_t longest = -1;
  uint32_t at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto& children = nodes_[at].children;
    const auto child =
        std::lower_bound(children.begin(), children.end(), std::pair{byte, uint32_t{0}});
    if (child == children.end() || child->first != byte) break;
    at = child->second;
    if (nodes_[at].token >= 0) {
      longest = nodes_[at].token;
      size = i + 1;
    }
  }
  return longest;
}

Result<bool> AddedTokenMatcher::InsideWord(std::string_view text, TextSpan span,
                                           RegexScratch& scratch) const {
  if (span.begin > 0) {
    const size_t before = CharacterStart(text, span.begin - 1);
    FATHOM_ASSIGN_OR_RETURN(const Regex::Match match,
                            word_->Find(text.substr(before, span.begin - before), 0, scratch));
    if (match.found) return true;
  }
  if (span.end == text.size()) return false;
  const std::string_view rest = text.substr(span.end);
  FATHOM_ASSIGN_OR_RETURN(const Regex::Match match,
                          word_->Find(rest.substr(0, DecodeUtf8(rest).size), 0, scratch));
  return match.found;
}

Status AddedTokenMatcher::Split(std::string_view text, bool parse_special, RegexScratch& scratch,
                                std::vector<TextPart>& parts) const {
  size_t end = 0;  // of the last part
  for (size_t at = 0; at < text.size();) {
    size_t size = 1;
    const int32_t index =
        begins_[static_cast<uint8_t>(text[at])] ? LongestAt(text.substr(at), size) : -1;
    TextSpan span{at, at + size};
    at = span.end;  // also past a match that is refused below
    if (index < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.special && !parse_special) continue;
    if (token.single_word) {
      FATHOM_ASSIGN_OR_RETURN(const bool inside, InsideWord(text, span, scratch));
      if (inside) continue;
    }
    if (token.lstrip) span.begin = SpaceBefore(text, span.begin, end);
    if (token.rstrip) span.end = SpaceAfter(text, span.end);
    if (span.begin > end) parts.push_back({-1, {end, span.begin}});
    parts.push_back({token.id, span});
    end = span.end;
  }
  if (end < text.size()) parts.push_back({-1, {end, text.size()}});
  return {};
}

}  // namespace fathom::text
