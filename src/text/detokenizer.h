#pragma once
// Token ids to text while they are generated. What it returns is always whole characters: bytes
// that may still become one are held back.
#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace fathom::text {

class Detokenizer {
 public:
  // `tokenizer` must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(&tokenizer), options_(options) {}

  // The text that is certain after this token, possibly none. All returned pieces and Flush() make
  // up Tokenizer::Decode of all ids.
  std::string Push(int32_t id);
  // At the end: U+FFFD where a character is still incomplete, and ready for another sequence.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string pending_;  // the first bytes of a character
};

}  // namespace fathom::text
