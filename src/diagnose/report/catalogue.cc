#include "diagnose/report/catalogue.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "diagnose/embedded.h"

namespace fathom::diagnose {
namespace {

using Catalogue = std::map<std::string, std::string, std::less<>>;

Catalogue Load(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  FATHOM_CHECK(parsed.is_object(), "a shipped catalogue is not a JSON object");
  Catalogue catalogue;
  for (const auto& [key, value] : parsed.items()) catalogue[key] = value;
  return catalogue;
}

const Catalogue& For(Language language) {
  static const Catalogue kEnglish = Load(embedded::kCatalogueEn);
  static const Catalogue kChinese = Load(embedded::kCatalogueZh);
  return language == Language::kEnglish ? kEnglish : kChinese;
}

}  // namespace

Result<Language> LanguageFromName(std::string_view name) {
  if (name == "en") return Language::kEnglish;
  if (name == "zh") return Language::kChinese;
  return Err(Code::kInvalidArgument, "--lang {}: expected en or zh", name);
}

std::string_view LanguageName(Language language) {
  return language == Language::kEnglish ? "en" : "zh";
}

std::string LimitPhrase(Language language, std::string_view english) {
  constexpr std::string_view kHandbook = "handbook ";  // and the claim's number
  if (language == Language::kEnglish) return std::string(english);
  if (english.starts_with(kHandbook)) {
    return Say(language, Text{"report.handbook_claim",
                              {{"claim", std::string(english.substr(kHandbook.size()))}}});
  }
  static const Catalogue kPhrases = Load(embedded::kLimitsZh);
  const auto it = kPhrases.find(english);
  FATHOM_CHECK(it != kPhrases.end(), "no Chinese for '{}'", english);
  return it->second;
}

std::string_view Sentence(Language language, std::string_view key) {
  const Catalogue& catalogue = For(language);
  const auto it = catalogue.find(key);
  FATHOM_CHECK(it != catalogue.end(), "no text for '{}'", key);
  return it->second;
}

namespace {

// The sentence for one of a thing, where its language has another one ("1 kernel loses").
std::string_view ForItsNumber(Language language, const Text& text) {
  const bool one = std::any_of(text.args.begin(), text.args.end(), [](const auto& arg) {
    return (arg.first == "n" || arg.first == "count") && arg.second == "1";
  });
  if (one) {
    const Catalogue& catalogue = For(language);
    const auto it = catalogue.find(std::string(text.key) + std::string(kSingular));
    if (it != catalogue.end()) return it->second;
  }
  return Sentence(language, text.key);
}

}  // namespace

std::string Say(Language language, const Text& text) {
  const std::string_view sentence = ForItsNumber(language, text);
  std::string out;
  for (size_t at = 0; at < sentence.size();) {
    const size_t open = sentence.find('{', at);
    const size_t close = open == sentence.npos ? open : sentence.find('}', open);
    if (close == sentence.npos) {
      out += sentence.substr(at);
      break;
    }
    out += sentence.substr(at, open - at);
    const std::string_view name = sentence.substr(open + 1, close - open - 1);
    for (const auto& [key, value] : text.args) {
      if (key != name) continue;
      out += key.starts_with(kLimitArgument) ? LimitPhrase(language, value) : value;
    }
    at = close + 1;
  }
  return out;
}

std::string Say(Language language, std::string_view key) { return Say(language, Text{key, {}}); }

std::vector<std::string> CatalogueKeys(Language language) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : For(language)) keys.push_back(key);
  return keys;
}

}  // namespace fathom::diagnose
