#pragma once
// Tokens that are found in the text as they are written, before any splitting: control tokens such
// as <｜User｜>, and words added to a vocabulary after training.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/regex.h"

namespace fathom::text {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // skipped when decoding, not matched when parse_special is off
  bool normalized = true;    // matched in the normalised text, else in the text as given
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
};

struct TextPart {
  int32_t id;  // -1: text between tokens
  TextSpan span;
};

// Finds tokens from left to right, the longest where several begin at one place.
class AddedTokenMatcher {
 public:
  // `contents[i]` is what to look for in place of tokens[i].content (the normalised form).
  static Result<AddedTokenMatcher> Build(std::vector<AddedToken> tokens,
                                         const std::vector<std::string>& contents);

  // Cuts `text` into tokens and what lies between, without empty parts. parse_special = false
  // leaves the tokens marked special as text.
  Status Split(std::string_view text, bool parse_special, RegexScratch& scratch,
               std::vector<TextPart>& parts) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    int32_t token = -1;                                  // index into tokens_
  };

  explicit AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {}
  // Index of the longest token at the start of `text`, -1 if none begins there.
  int32_t LongestAt(std::string_view text, size_t& size) const;
  Result<bool> InsideWord(std::string_view text, TextSpan span, RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);  // a trie; nodes_[0] is its root
  std::array<bool, 256> begins_ = {};               // bytes that begin a token
  std::optional<Regex> word_;                       // set where a token is single_word
};

}  // namespace fathom::text
