#include "text/tokenizer_file.h"

#include <algorithm>
#include <utility>

#include "text/json_reader.h"
#include "text/unicode.h"

namespace fathom::text {
namespace {

// Published vocabularies stay below 300,000; this bounds the tables of a hostile file.
constexpr int64_t kMaxTokens = int64_t{1} << 22;

// The pattern of GPT-2, which ByteLevel with use_regex stands for.
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// What the Digits step takes for a digit: Rust's char::is_numeric, which is at Unicode 17.
constexpr std::string_view kDigit = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

// GPT-2's printable stand-in for a byte: printable Latin-1 is itself, the rest follow from U+0100.
std::array<char32_t, 256> ByteCharacters() {
  std::array<char32_t, 256> characters = {};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

// The bytes that a spelling stands for. A spelling with characters that stand for no byte (such as
// "<｜User｜>") is itself.
std::string SpelledBytes(std::string_view spelling) {
  static const auto* const kByteOf = [] {
    auto* table = new std::unordered_map<char32_t, char>();
    const auto characters = ByteCharacters();
    for (size_t byte = 0; byte < 256; ++byte) {
      table->emplace(characters[byte], static_cast<char>(byte));
    }
    return table;
  }();
  std::string bytes;
  for (size_t i = 0; i < spelling.size();) {
    const Utf8Step step = DecodeUtf8(spelling.substr(i));
    const auto byte = kByteOf->find(step.code_point);
    if (byte == kByteOf->end()) return std::string(spelling);
    bytes += byte->second;
    i += step.size;
  }
  return bytes;
}

bool OccursInUtf8(uint8_t byte) { return byte != 0xC0 && byte != 0xC1 && byte <= 0xF4; }

class Parser {
 public:
  explicit Parser(JsonObject root) : root_(root) {}

  Result<TokenizerFile> Run() {
    FATHOM_ASSIGN_OR_RETURN(const JsonElement model_element,
                            JsonMember(root_, "model", "tokenizer.json"));
    FATHOM_ASSIGN_OR_RETURN(const JsonObject model, AsJsonObject(model_element, "model"));
    FATHOM_TRY(CheckModel(model));
    FATHOM_TRY(ReadTokens(model));
    FATHOM_TRY(ReadMerges(model));
    FATHOM_TRY(ReadNormalizer());
    FATHOM_TRY(ReadPreTokenizer());
    FATHOM_TRY(ReadPostProcessor());
    FATHOM_TRY(CheckDecoder());
    return std::move(file_);
  }

 private:
  Status CheckModel(const JsonObject& model) {
    FATHOM_ASSIGN_OR_RETURN(const std::string_view type, Type(model, "model"));
    if (type != "BPE") {
      return Err(Code::kUnsupported, "model.type: '{}' is not supported; supported is BPE", type);
    }
    JsonElement value;
    for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!JsonOptional(model, key, value)) continue;
      FATHOM_ASSIGN_OR_RETURN(const std::string_view affix, JsonString(value, key));
      if (!affix.empty()) {
        return Err(Code::kUnsupported, "model.{}: '{}' is not supported; byte-level BPE has none",
                   key, affix);
      }
    }
    if (JsonOptional(model, "dropout", value)) {
      return Err(Code::kUnsupported,
                 "model.dropout is not supported: token ids must be repeatable");
    }
    FATHOM_ASSIGN_OR_RETURN(const bool byte_fallback,
                            JsonFlag(model, "byte_fallback", false, "model"));
    if (byte_fallback) {
      return Err(Code::kUnsupported,
                 "model.byte_fallback is not supported; supported is byte-level BPE");
    }
    FATHOM_ASSIGN_OR_RETURN(file_.ignore_merges, JsonFlag(model, "ignore_merges", false, "model"));
    return {};
  }

  static Result<int32_t> TokenId(const JsonElement& element, std::string_view token) {
    int64_t id = -1;
    if (element.get(id) != simdjson::SUCCESS || id < 0 || id >= kMaxTokens) {
      return Err(Code::kInvalidArgument, "token '{}': its id must be an integer from 0 to {}",
                 token, kMaxTokens - 1);
    }
    return static_cast<int32_t>(id);
  }

  // The model's vocabulary, then the added tokens.
  Status ReadTokens(const JsonObject& model) {
    FATHOM_ASSIGN_OR_RETURN(const JsonElement vocab_element, JsonMember(model, "vocab", "model"));
    FATHOM_ASSIGN_OR_RETURN(const JsonObject vocab, AsJsonObject(vocab_element, "model.vocab"));
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (const auto& [token, value] : vocab) {
      FATHOM_ASSIGN_OR_RETURN(const int32_t id, TokenId(value, token));
      tokens.emplace_back(token, id);
    }
    FATHOM_TRY(ReadAddedTokens());
    size_t size = 0;
    for (const auto& [token, id] : tokens) size = std::max(size, static_cast<size_t>(id) + 1);
    for (const AddedToken& token : file_.added_tokens) {
      size = std::max(size, static_cast<size_t>(token.id) + 1);
    }
    file_.spellings.resize(size);
    file_.bytes.resize(size);
    file_.ids.reserve(tokens.size() + file_.added_tokens.size());
    for (const auto& [token, id] : tokens) FATHOM_TRY(AddToken(token, id));
    file_.byte_ids.fill(-1);
    for (const auto& [token, id] : tokens) {
      const std::string& bytes = file_.bytes[static_cast<size_t>(id)] = SpelledBytes(token);
      if (bytes.size() == 1) file_.byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    }
    for (const AddedToken& token : file_.added_tokens) {
      const auto known = file_.ids.find(token.content);
      if (known == file_.ids.end()) {
        FATHOM_TRY(AddToken(token.content, token.id));
      } else if (known->second != token.id) {
        return Err(Code::kInvalidArgument, "added token '{}' has id {}, but {} in the vocabulary",
                   token.content, token.id, known->second);
      }
      file_.bytes[static_cast<size_t>(token.id)] = token.content;
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      if (file_.byte_ids[byte] < 0 && OccursInUtf8(static_cast<uint8_t>(byte))) {
        return Err(Code::kUnsupported,
                   "model.vocab has no token for the byte {:#04x}; byte-level BPE needs one for "
                   "each byte of UTF-8",
                   byte);
      }
    }
    return {};
  }

  Status AddToken(std::string_view token, int32_t id) {
    if (token.empty()) return Err(Code::kInvalidArgument, "token {} is empty", id);
    std::string& spelling = file_.spellings[static_cast<size_t>(id)];
    if (!spelling.empty()) {
      return Err(Code::kInvalidArgument, "tokens '{}' and '{}' have the same id {}", spelling,
                 token, id);
    }
    spelling = token;
    if (!file_.ids.emplace(spelling, id).second) {
      return Err(Code::kInvalidArgument, "token '{}' occurs twice", token);
    }
    return {};
  }

  Status ReadAddedTokens() {
    JsonElement element;
    if (!JsonOptional(root_, "added_tokens", element)) return {};
    FATHOM_ASSIGN_OR_RETURN(const JsonArray array, AsJsonArray(element, "added_tokens"));
    for (const JsonElement& item : array) {
      constexpr std::string_view kWhere = "added_tokens[]";
      FATHOM_ASSIGN_OR_RETURN(const JsonObject object, AsJsonObject(item, kWhere));
      FATHOM_ASSIGN_OR_RETURN(const JsonElement content, JsonMember(object, "content", kWhere));
      FATHOM_ASSIGN_OR_RETURN(const std::string_view text, JsonString(content, kWhere));
      FATHOM_ASSIGN_OR_RETURN(const JsonElement id, JsonMember(object, "id", kWhere));
      AddedToken token;
      token.content = text;
      FATHOM_ASSIGN_OR_RETURN(token.id, TokenId(id, text));
      FATHOM_ASSIGN_OR_RETURN(token.special, JsonFlag(object, "special", false, kWhere));
      FATHOM_ASSIGN_OR_RETURN(token.normalized,
                              JsonFlag(object, "normalized", !token.special, kWhere));
      FATHOM_ASSIGN_OR_RETURN(token.single_word, JsonFlag(object, "single_word", false, kWhere));
      FATHOM_ASSIGN_OR_RETURN(token.lstrip, JsonFlag(object, "lstrip", false, kWhere));
      FATHOM_ASSIGN_OR_RETURN(token.rstrip, JsonFlag(object, "rstrip", false, kWhere));
      file_.added_tokens.push_back(std::move(token));
    }
    return {};
  }

  Result<int32_t> MergePart(std::string_view part, uint32_t rank) {
    const auto token = file_.ids.find(part);
    if (token == file_.ids.end()) {
      return Err(Code::kInvalidArgument, "model.merges[{}]: '{}' is not in the vocabulary", rank,
                 part);
    }
    return token->second;
  }

  Status ReadMerges(const JsonObject& model) {
    FATHOM_ASSIGN_OR_RETURN(const JsonElement element, JsonMember(model, "merges", "model"));
    FATHOM_ASSIGN_OR_RETURN(const JsonArray merges, AsJsonArray(element, "model.merges"));
    size_t count = 0;
    for ([[maybe_unused]] const JsonElement& merge : merges) ++count;
    file_.merges = MergeTable(count);
    uint32_t rank = 0;
    std::string whole;
    for (const JsonElement& merge : merges) {
      std::string_view left, right;
      FATHOM_TRY(SplitMerge(merge, rank, left, right));
      whole.assign(left).append(right);
      FATHOM_ASSIGN_OR_RETURN(const int32_t left_id, MergePart(left, rank));
      FATHOM_ASSIGN_OR_RETURN(const int32_t right_id, MergePart(right, rank));
      FATHOM_ASSIGN_OR_RETURN(const int32_t whole_id, MergePart(whole, rank));
      file_.merges.Insert(left_id, right_id, {rank, whole_id});
      ++rank;
    }
    return {};
  }

  // "left right", or ["left", "right"].
  static Status SplitMerge(const JsonElement& merge, uint32_t rank, std::string_view& left,
                           std::string_view& right) {
    std::string_view line;
    if (merge.get(line) == simdjson::SUCCESS) {
      const size_t space = line.find(' ');
      if (space != std::string_view::npos) {
        left = line.substr(0, space);
        right = line.substr(space + 1);
      }
    } else if (JsonArray pair; merge.get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      if (pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) {
        left = right = {};
      }
    }
    if (left.empty() || right.empty() || right.find(' ') != std::string_view::npos) {
      return Err(Code::kInvalidArgument,
                 "model.merges[{}]: expected \"left right\" or [\"left\", \"right\"]", rank);
    }
    return {};
  }

  static Result<std::string_view> Type(const JsonObject& object, std::string_view where) {
    FATHOM_ASSIGN_OR_RETURN(const JsonElement type, JsonMember(object, "type", where));
    return JsonString(type, fmt::format("{}.type", where));
  }

  // Calls `each` for `root`[key], or for each element where that is a Sequence (listed as `list`).
  template <class Each>
  Status ForEach(std::string_view key, std::string_view list, Each each) {
    JsonElement element;
    if (!JsonOptional(root_, key, element)) return {};
    return ForEachIn(element, key, list, each);
  }
  template <class Each>
  Status ForEachIn(const JsonElement& element, std::string_view key, std::string_view list,
                   Each& each) {
    FATHOM_ASSIGN_OR_RETURN(const JsonObject object, AsJsonObject(element, key));
    FATHOM_ASSIGN_OR_RETURN(const std::string_view type, Type(object, key));
    if (type != "Sequence") return each(object, type);
    FATHOM_ASSIGN_OR_RETURN(const JsonElement list_element, JsonMember(object, list, key));
    FATHOM_ASSIGN_OR_RETURN(const JsonArray array, AsJsonArray(list_element, list));
    for (const JsonElement& item : array) FATHOM_TRY(ForEachIn(item, key, list, each));
    return {};
  }

  Status ReadNormalizer() {
    return ForEach(
        "normalizer", "normalizers", [&](const JsonObject&, std::string_view type) -> Status {
          if (type != "NFC") {
            return Err(Code::kUnsupported,
                       "normalizer: '{}' is not supported; supported are Sequence and NFC", type);
          }
          file_.nfc = true;
          return {};
        });
  }

  Status ReadPreTokenizer() {
    bool byte_level = false;
    FATHOM_TRY(ForEach(
        "pre_tokenizer", "pretokenizers",
        [&](const JsonObject& step, std::string_view type) -> Status {
          if (byte_level) {
            return Err(Code::kUnsupported, "pre_tokenizer: '{}' after ByteLevel is not supported",
                       type);
          }
          if (type == "Split") return ReadSplit(step);
          if (type == "Digits") {
            FATHOM_ASSIGN_OR_RETURN(const bool individual,
                                    JsonFlag(step, "individual_digits", false, "Digits"));
            FATHOM_ASSIGN_OR_RETURN(Regex digit, Regex::Compile(kDigit));
            file_.pre_tokenizer.AddSplit(
                std::move(digit),
                individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
            return {};
          }
          if (type == "ByteLevel") {
            byte_level = true;
            return ReadByteLevel(step);
          }
          return Err(Code::kUnsupported,
                     "pre_tokenizer: '{}' is not supported; supported are Sequence, Split, Digits "
                     "and ByteLevel",
                     type);
        }));
    if (!byte_level) {
      return Err(Code::kUnsupported,
                 "pre_tokenizer: ByteLevel is missing; only byte-level BPE is supported");
    }
    return {};
  }

  Status ReadByteLevel(const JsonObject& step) {
    FATHOM_ASSIGN_OR_RETURN(const bool prefix_space,
                            JsonFlag(step, "add_prefix_space", true, "ByteLevel"));
    FATHOM_ASSIGN_OR_RETURN(const bool use_regex, JsonFlag(step, "use_regex", true, "ByteLevel"));
    if (prefix_space) file_.pre_tokenizer.AddPrefixSpace();
    if (use_regex) {
      FATHOM_ASSIGN_OR_RETURN(Regex gpt2, Regex::Compile(kGpt2Pattern));
      file_.pre_tokenizer.AddSplit(std::move(gpt2), SplitBehavior::kIsolated, false);
    }
    return {};
  }

  Status ReadSplit(const JsonObject& step) {
    constexpr std::string_view kWhere = "pre_tokenizer Split";
    FATHOM_ASSIGN_OR_RETURN(const JsonElement pattern_element, JsonMember(step, "pattern", kWhere));
    FATHOM_ASSIGN_OR_RETURN(const JsonObject pattern, AsJsonObject(pattern_element, kWhere));
    FATHOM_ASSIGN_OR_RETURN(const JsonElement behavior_element,
                            JsonMember(step, "behavior", kWhere));
    FATHOM_ASSIGN_OR_RETURN(const std::string_view name, JsonString(behavior_element, kWhere));
    FATHOM_ASSIGN_OR_RETURN(const bool invert, JsonFlag(step, "invert", false, kWhere));
    constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
        {"Removed", SplitBehavior::kRemoved},
        {"Isolated", SplitBehavior::kIsolated},
        {"Contiguous", SplitBehavior::kContiguous},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext}};
    for (const auto& [known, behavior] : kBehaviors) {
      if (name != known) continue;
      JsonElement text;
      const bool is_regex = JsonOptional(pattern, "Regex", text);
      if (!is_regex) {
        FATHOM_ASSIGN_OR_RETURN(text, JsonMember(pattern, "String", kWhere));
      }
      FATHOM_ASSIGN_OR_RETURN(const std::string_view source, JsonString(text, kWhere));
      FATHOM_ASSIGN_OR_RETURN(Regex regex,
                              is_regex ? Regex::Compile(source) : Regex::CompileLiteral(source));
      file_.pre_tokenizer.AddSplit(std::move(regex), behavior, invert);
      return {};
    }
    return Err(Code::kInvalidArgument,
               "{}: behavior '{}' is unknown; known are Removed, Isolated, Contiguous, "
               "MergedWithPrevious and MergedWithNext",
               kWhere, name);
  }

  Status ReadPostProcessor() {
    return ForEach("post_processor", "processors",
                   [&](const JsonObject& step, std::string_view type) -> Status {
                     if (type == "ByteLevel") return {};  // moves offsets only
                     if (type == "TemplateProcessing") return ReadTemplate(step);
                     return Err(Code::kUnsupported,
                                "post_processor: '{}' is not supported; supported are Sequence, "
                                "ByteLevel and TemplateProcessing",
                                type);
                   });
  }

  Status ReadTemplate(const JsonObject& step) {
    constexpr std::string_view kWhere = "post_processor TemplateProcessing";
    FATHOM_ASSIGN_OR_RETURN(const JsonElement single_element, JsonMember(step, "single", kWhere));
    FATHOM_ASSIGN_OR_RETURN(const JsonArray single, AsJsonArray(single_element, kWhere));
    bool after_text = false;
    for (const JsonElement& item : single) {
      FATHOM_ASSIGN_OR_RETURN(const JsonObject piece, AsJsonObject(item, kWhere));
      JsonElement value;
      if (JsonOptional(piece, "Sequence", value)) {
        if (after_text) return Err(Code::kUnsupported, "{}: the text occurs twice", kWhere);
        after_text = true;
        continue;
      }
      FATHOM_ASSIGN_OR_RETURN(value, JsonMember(piece, "SpecialToken", kWhere));
      FATHOM_ASSIGN_OR_RETURN(const JsonObject special, AsJsonObject(value, kWhere));
      FATHOM_ASSIGN_OR_RETURN(value, JsonMember(special, "id", kWhere));
      FATHOM_ASSIGN_OR_RETURN(const std::string_view name, JsonString(value, kWhere));
      const auto token = file_.ids.find(name);
      if (token == file_.ids.end()) {
        return Err(Code::kInvalidArgument, "{}: '{}' is not a token", kWhere, name);
      }
      (after_text ? file_.suffix_ids : file_.prefix_ids).push_back(token->second);
    }
    if (!after_text) return Err(Code::kInvalidArgument, "{}: the text does not occur", kWhere);
    return {};
  }

  Status CheckDecoder() {
    bool byte_level = false;
    FATHOM_TRY(
        ForEach("decoder", "decoders", [&](const JsonObject&, std::string_view type) -> Status {
          if (type != "ByteLevel") {
            return Err(Code::kUnsupported, "decoder: '{}' is not supported; supported is ByteLevel",
                       type);
          }
          byte_level = true;
          return {};
        }));
    if (!byte_level) return Err(Code::kUnsupported, "decoder: ByteLevel is missing");
    return {};
  }

  JsonObject root_;
  TokenizerFile file_;
};

// A token is given as its text, or as an object with "content".
Result<std::optional<std::string>> ConfigToken(const JsonObject& root, std::string_view key) {
  JsonElement value;
  if (!JsonOptional(root, key, value)) return std::nullopt;
  if (JsonObject object; value.get(object) == simdjson::SUCCESS) {
    FATHOM_ASSIGN_OR_RETURN(value, JsonMember(object, "content", key));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string_view text, JsonString(value, key));
  return std::string(text);
}

// One template, or a list of {"name", "template"} of which "default" is the one for chats.
Result<std::string> ConfigChatTemplate(const JsonObject& root) {
  JsonElement value;
  if (!JsonOptional(root, "chat_template", value)) return std::string();
  if (JsonArray list; value.get(list) == simdjson::SUCCESS) {
    for (const JsonElement& item : list) {
      FATHOM_ASSIGN_OR_RETURN(const JsonObject named, AsJsonObject(item, "chat_template[]"));
      FATHOM_ASSIGN_OR_RETURN(value, JsonMember(named, "name", "chat_template[]"));
      FATHOM_ASSIGN_OR_RETURN(const std::string_view name, JsonString(value, "chat_template[]"));
      if (name != "default") continue;
      FATHOM_ASSIGN_OR_RETURN(value, JsonMember(named, "template", "chat_template[]"));
      FATHOM_ASSIGN_OR_RETURN(const std::string_view text, JsonString(value, "chat_template[]"));
      return std::string(text);
    }
    return std::string();
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string_view text, JsonString(value, "chat_template"));
  return std::string(text);
}

Result<JsonObject> ParseRoot(simdjson::dom::parser& parser, std::string_view json) {
  JsonElement root;
  if (const auto error = parser.parse(simdjson::padded_string(json)).get(root)) {
    return Err(Code::kInvalidArgument, "not valid JSON: {}", simdjson::error_message(error));
  }
  return AsJsonObject(root, "the document");
}

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view json) {
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const JsonObject root, ParseRoot(parser, json));
  return Parser(root).Run();
}

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json) {
  simdjson::dom::parser parser;
  FATHOM_ASSIGN_OR_RETURN(const JsonObject root, ParseRoot(parser, json));
  TokenizerConfig config;
  FATHOM_ASSIGN_OR_RETURN(config.bos_token, ConfigToken(root, "bos_token"));
  FATHOM_ASSIGN_OR_RETURN(config.eos_token, ConfigToken(root, "eos_token"));
  FATHOM_ASSIGN_OR_RETURN(config.pad_token, ConfigToken(root, "pad_token"));
  FATHOM_ASSIGN_OR_RETURN(config.unk_token, ConfigToken(root, "unk_token"));
  JsonElement value;
  for (auto [key, flag] : {std::pair{"add_bos_token", &config.add_bos_token},
                           std::pair{"add_eos_token", &config.add_eos_token}}) {
    if (!JsonOptional(root, key, value)) continue;
    FATHOM_ASSIGN_OR_RETURN(*flag, JsonAs<bool>(value, key, "true or false"));
  }
  FATHOM_ASSIGN_OR_RETURN(config.chat_template, ConfigChatTemplate(root));
  return config;
}

}  // namespace fathom::text
