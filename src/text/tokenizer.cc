#include "text/tokenizer.h"

#include <filesystem>
#include <mutex>
#include <utility>

#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace fathom::text {
namespace {

struct Scratch {
  PreTokenizer::Scratch words;
  BpeModel::Scratch bpe;
  WordCache cache;
};

// Scratch memory (with its warm word cache) goes from call to call.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void Return(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

Result<AddedTokenMatcher> BuildMatcher(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  for (const AddedToken& token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    tokens.push_back(token);
    contents.push_back(normalized && file.nfc ? NormalizeNfc(token.content) : token.content);
  }
  return AddedTokenMatcher::Build(std::move(tokens), contents);
}

BpeModel BuildModel(TokenizerFile& file) {
  WordTable whole_words(file.ignore_merges ? file.bytes.size() : 0);
  if (file.ignore_merges) {
    std::vector<bool> added(file.spellings.size());
    for (const AddedToken& token : file.added_tokens) added[static_cast<size_t>(token.id)] = true;
    for (size_t id = 0; id < file.bytes.size(); ++id) {
      if (!added[id] && !file.bytes[id].empty()) {
        whole_words.Insert(file.bytes[id], static_cast<int32_t>(id));
      }
    }
  }
  return BpeModel(file.byte_ids, std::move(file.merges), std::move(whole_words));
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerFile parsed, AddedTokenMatcher raw, AddedTokenMatcher normalized)
      : file(std::move(parsed)),
        raw_tokens(std::move(raw)),
        normalized_tokens(std::move(normalized)),
        model(BuildModel(file)),
        special(file.spellings.size()) {
    for (const AddedToken& token : file.added_tokens) {
      special[static_cast<size_t>(token.id)] = token.special;
    }
  }

  Status Configure(const TokenizerConfig& config);
  Status EncodeText(std::string_view text, bool parse_special, Scratch& scratch,
                    std::vector<int32_t>& out) const;
  // Tokens of a piece that has been through the pre-tokenizer's steps before `step`.
  Status EncodePiece(size_t step, std::string_view piece, Scratch& scratch, bool use_cache,
                     std::vector<int32_t>& out) const;

  TokenizerFile file;
  AddedTokenMatcher raw_tokens, normalized_tokens;
  BpeModel model;
  std::vector<bool> special;  // by id
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::string bos_token, eos_token, chat_template;
  mutable ScratchPool scratch;
};

Status Tokenizer::Impl::Configure(const TokenizerConfig& config) {
  const auto resolve = [&](std::string_view key, const std::optional<std::string>& token,
                           std::optional<int32_t>& id) -> Status {
    if (!token) return {};
    const auto known = file.ids.find(*token);
    if (known == file.ids.end()) {
      return Err(Code::kInvalidArgument,
                 "tokenizer_config.json: {} is '{}', which tokenizer.json does not have", key,
                 *token);
    }
    id = known->second;
    return {};
  };
  FATHOM_TRY(resolve("bos_token", config.bos_token, bos_id));
  FATHOM_TRY(resolve("eos_token", config.eos_token, eos_id));
  FATHOM_TRY(resolve("pad_token", config.pad_token, pad_id));
  FATHOM_TRY(resolve("unk_token", config.unk_token, unk_id));
  bos_token = config.bos_token.value_or("");
  eos_token = config.eos_token.value_or("");
  chat_template = config.chat_template;

  const auto surround = [&](std::string_view key, std::optional<bool> add,
                            std::optional<int32_t> id, std::vector<int32_t>& ids) -> Status {
    if (!add) return {};
    ids.clear();
    if (!*add) return {};
    if (!id) {
      return Err(Code::kInvalidArgument,
                 "tokenizer_config.json: {} is true, but there is no such token", key);
    }
    ids.push_back(*id);
    return {};
  };
  FATHOM_TRY(surround("add_bos_token", config.add_bos_token, bos_id, file.prefix_ids));
  return surround("add_eos_token", config.add_eos_token, eos_id, file.suffix_ids);
}

Status Tokenizer::Impl::EncodeText(std::string_view text, bool parse_special, Scratch& scratch,
                                   std::vector<int32_t>& out) const {
  std::vector<TextPart> parts, inner;
  std::string normal;
  FATHOM_TRY(raw_tokens.Split(text, parse_special, scratch.words.regex, parts));
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    std::string_view plain = text.substr(part.span.begin, part.span.size());
    if (file.nfc && !IsTriviallyNfc(plain)) plain = normal = NormalizeNfc(plain);
    inner.clear();
    FATHOM_TRY(normalized_tokens.Split(plain, parse_special, scratch.words.regex, inner));
    for (const TextPart& piece : inner) {
      if (piece.id >= 0) {
        out.push_back(piece.id);
        continue;
      }
      FATHOM_TRY(
          EncodePiece(0, plain.substr(piece.span.begin, piece.span.size()), scratch, true, out));
    }
  }
  return {};
}

Status Tokenizer::Impl::EncodePiece(size_t step, std::string_view piece, Scratch& scratch,
                                    bool use_cache, std::vector<int32_t>& out) const {
  // What a cached piece splits into is not cached again.
  const bool cached = use_cache && piece.size() <= WordCache::kMaxBytes;
  const size_t slot = cached ? scratch.cache.Slot(step, piece) : 0;
  if (cached && scratch.cache.Hit(slot, step, piece)) {
    const std::span<const int32_t> tokens = scratch.cache.Tokens(slot);
    out.insert(out.end(), tokens.begin(), tokens.end());
    return {};
  }
  const size_t begin = out.size();
  if (step == file.pre_tokenizer.num_steps()) {
    model.Encode(piece, scratch.bpe, out);
  } else {
    FATHOM_TRY(file.pre_tokenizer.Run(step, piece, scratch.words, [&](std::string_view part) {
      return EncodePiece(step + 1, part, scratch, use_cache && !cached, out);
    }));
  }
  if (cached) scratch.cache.Store(slot, step, piece, std::span(out).subspan(begin));
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::LoadModel(const std::string& model_directory) {
  namespace fs = std::filesystem;
  const fs::path directory(model_directory);
  const fs::path config = directory / "tokenizer_config.json";
  std::error_code ignored;
  FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer,
                          Load((directory / "tokenizer.json").string(),
                               fs::exists(config, ignored) ? config.string() : ""));
  // Newer repositories keep the template in a file of its own, which then counts.
  const fs::path chat_template = directory / "chat_template.jinja";
  if (fs::exists(chat_template, ignored)) {
    FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(chat_template.string()));
    tokenizer.impl_->chat_template = file.text();
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::Load(const std::string& tokenizer_json_path,
                                  const std::string& tokenizer_config_path) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile json, MappedFile::Open(tokenizer_json_path));
  MappedFile config;
  if (!tokenizer_config_path.empty()) {
    FATHOM_ASSIGN_OR_RETURN(config, MappedFile::Open(tokenizer_config_path));
  }
  auto tokenizer = Parse(json.text(), config.text());
  if (!tokenizer) {
    return tl::unexpected(WithContext(std::move(tokenizer.error()), tokenizer_json_path));
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::Parse(std::string_view tokenizer_json,
                                   std::string_view tokenizer_config) {
  FATHOM_ASSIGN_OR_RETURN(TokenizerFile file, ParseTokenizerFile(tokenizer_json));
  FATHOM_ASSIGN_OR_RETURN(AddedTokenMatcher raw, BuildMatcher(file, false));
  FATHOM_ASSIGN_OR_RETURN(AddedTokenMatcher normalized, BuildMatcher(file, true));
  auto impl = std::make_unique<Impl>(std::move(file), std::move(raw), std::move(normalized));
  if (!tokenizer_config.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const TokenizerConfig config, ParseTokenizerConfig(tokenizer_config));
    FATHOM_TRY(impl->Configure(config));
  }
  return Tokenizer(std::move(impl));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::string replaced;
  if (!IsValidUtf8(text)) text = replaced = ReplaceInvalidUtf8(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = impl_->file.prefix_ids;
  std::unique_ptr<Scratch> scratch = impl_->scratch.Take();
  const Status status = impl_->EncodeText(text, options.parse_special, *scratch, ids);
  impl_->scratch.Return(std::move(scratch));
  if (!status) return tl::unexpected(status.error());
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->file.suffix_ids.begin(), impl_->file.suffix_ids.end());
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(options.skip_special_tokens && IsSpecial(id))) bytes += TokenBytes(id);
  }
  return IsValidUtf8(bytes) ? bytes : ReplaceInvalidUtf8(bytes);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->file.bytes[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::IdOf(std::string_view token) const {
  const auto known = impl_->file.ids.find(token);
  if (known == impl_->file.ids.end()) return std::nullopt;
  return known->second;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)];
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->file.spellings.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return impl_->unk_id; }
const std::string& Tokenizer::bos_token() const { return impl_->bos_token; }
const std::string& Tokenizer::eos_token() const { return impl_->eos_token; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }

}  // namespace fathom::text
