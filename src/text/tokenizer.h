#pragma once
// Text to token ids and back, for the byte-level BPE tokenizers of DeepSeek, Qwen and Llama 3, read
// from the tokenizer.json that ships with a model. Ids equal those of the `tokenizers` package.
// What such a file asks for and this class does not do is an error that names it.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

struct EncodeOptions {
  // What the model puts around a text: <｜begin▁of▁sentence｜> in front, for most. Off for a
  // rendered chat, which has it already.
  bool add_special_tokens = true;
  // Off: control tokens (those marked special) in the text stay text.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

class Tokenizer {
 public:
  // Reads tokenizer.json and, beside it, what there is of tokenizer_config.json and
  // chat_template.jinja.
  static Result<Tokenizer> LoadModel(const std::string& model_directory);
  // `tokenizer_config_path` may be empty.
  static Result<Tokenizer> Load(const std::string& tokenizer_json_path,
                                const std::string& tokenizer_config_path);
  // The same from memory; an empty config is none.
  static Result<Tokenizer> Parse(std::string_view tokenizer_json,
                                 std::string_view tokenizer_config);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are a text: each maximal invalid part counts as U+FFFD. Fails only where a regular
  // expression of the file takes too many steps. Safe to call from several threads.
  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // Ids without a token (a model's padded vocabulary has some) decode to nothing; bytes that are
  // not UTF-8 to U+FFFD.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The bytes that a token adds to a text, which may be part of a character; empty without a token.
  std::string_view TokenBytes(int32_t id) const;
  // The id of a token by its spelling in the file: "<think>", or "Ġthe" for " the".
  std::optional<int32_t> IdOf(std::string_view token) const;
  // Whether it is a control token, which skip_special_tokens leaves out. The <｜User｜>,
  // <｜Assistant｜> and <think> of the Qwen distills are not marked so.
  bool IsSpecial(int32_t id) const;

  // One more than the largest id. Models often have more rows in their embedding.
  int32_t vocab_size() const;

  // From tokenizer_config.json.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // The spelling of bos_id(), eos_id(); empty without one.
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  // The Jinja source of the chat template ("default" where there are several), empty without one.
  const std::string& chat_template() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::text
