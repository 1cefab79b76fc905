#pragma once
// The words of a report, by language. A text is a key with named arguments; the catalogue has its
// sentence with {name} where an argument goes.
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "diagnose/finding.h"

namespace fathom::diagnose {

enum class Language : uint8_t { kEnglish, kChinese };
Result<Language> LanguageFromName(std::string_view name);  // "en", "zh"
std::string_view LanguageName(Language language);

// Ends the key of a sentence for one of a thing, which is said when the argument "n" or "count" is
// 1; only languages that tell one from several have such sentences.
inline constexpr std::string_view kSingular = ".one";

// A phrase of thresholds.json (unit, source or known exception of a limit), which is English there.
// One that a language lacks is a bug: a test compares them.
std::string LimitPhrase(Language language, std::string_view english);

// Arguments with this in front of their names are such phrases.
inline constexpr std::string_view kLimitArgument = "limit.";

// The sentence of `text`. A key that a catalogue lacks is a bug: a test compares the catalogues.
std::string Say(Language language, const Text& text);
// A key without arguments.
std::string Say(Language language, std::string_view key);

// The sentence as it is in the catalogue, with its {marks}.
std::string_view Sentence(Language language, std::string_view key);

// All keys of a catalogue, sorted.
std::vector<std::string> CatalogueKeys(Language language);

}  // namespace fathom::diagnose
