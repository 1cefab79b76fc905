#pragma once
// A small tokenizer for tests: the 256 bytes, "ab", "abc", and DeepSeek's control tokens.
#include <string>

#include "text/tokenizer.h"

namespace fathom::text {

inline constexpr const char* kTestControlTokens[] = {
    "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",   "<think>",    "</think>"};

inline std::string TestTokenizerJson() {
  std::string vocab, added;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    vocab += fmt::format("\"\\u{:04x}\": {}, ", printable ? byte : next, byte);
    if (!printable) ++next;
    if (byte == 'a') vocab.replace(vocab.rfind("\"\\u0061\""), 8, "\"a\"");
  }
  vocab += "\"ab\": 256, \"abc\": 257";
  int id = 258;
  for (const char* token : kTestControlTokens) {
    added += fmt::format(R"({}{{"id": {}, "content": "{}", "normalized": false, "special": {}}})",
                         added.empty() ? "" : ", ", id, token, token[1] != 't' && token[1] != '/');
    ++id;
  }
  return fmt::format(
      R"({{"version": "1.0", "added_tokens": [{}], "normalizer": null,
"pre_tokenizer": {{"type": "Sequence", "pretokenizers": [
  {{"type": "Split", "pattern": {{"Regex": "\\p{{N}}{{1,3}}| ?\\p{{L}}+|\\s+(?!\\S)|\\s"}},
    "behavior": "Isolated", "invert": false}},
  {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}]}},
"post_processor": null, "decoder": {{"type": "ByteLevel"}},
"model": {{"type": "BPE", "byte_fallback": false, "vocab": {{{}}}, "merges": ["a b", "ab c"]}}}})",
      added, vocab);
}

inline std::string TestTokenizerConfig() {
  return R"({"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>",
             "add_bos_token": true})";
}

inline Tokenizer TestTokenizer() {
  return Tokenizer::Parse(TestTokenizerJson(), TestTokenizerConfig()).value();
}

}  // namespace fathom::text
