#pragma once
// What tokenizer.json and tokenizer_config.json say, checked. Formats: the `tokenizers` library's
// serialisation (version "1.0") and transformers' tokenizer configuration.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace fathom::text {

struct TokenizerFile {
  std::vector<std::string> spellings;                 // by id, as in the file; empty: no token
  std::vector<std::string> bytes;                     // by id, what the token adds to a text
  std::unordered_map<std::string_view, int32_t> ids;  // keys point into `spellings`
  std::vector<AddedToken> added_tokens;
  std::array<int32_t, 256> byte_ids = {};  // -1: none
  MergeTable merges;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> prefix_ids, suffix_ids;  // of the post-processor's template
};

Result<TokenizerFile> ParseTokenizerFile(std::string_view json);

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;
  std::optional<bool> add_bos_token, add_eos_token;  // given: these and not the template decide
  std::string chat_template;
};

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json);

}  // namespace fathom::text
