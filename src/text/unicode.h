#pragma once
// UTF-8 and the few Unicode facts that tokenisation needs. Invalid UTF-8 follows Unicode's
// "substitution of maximal subparts" (section 3.9): each maximal prefix of a sequence that could
// have become valid is one U+FFFD, as in Python's errors="replace" and Rust's from_utf8_lossy.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fathom::text {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

struct CategoryRange {
  char32_t first;
  char32_t last;
  char category[3];  // two-letter general category, "Lu"
};

// Code points assigned in Unicode 15 and 16: those that PCRE2 10.42 (Unicode 14) does not know.
std::span<const CategoryRange> NewCategories();
// Code points that NFC may change or reorder. A text without any is in NFC.
std::span<const CodePointRange> NfcActive();
// Code points that the reference normaliser predates: it leaves them, and nothing passes them.
std::span<const CodePointRange> NfcInert();

// Whether a sorted table holds `code_point`.
bool Contains(std::span<const CodePointRange> table, char32_t code_point);

// The Unicode property White_Space.
bool IsWhiteSpace(char32_t code_point);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum class Kind : uint8_t {
    kValid,       // one code point
    kInvalid,     // a maximal subpart: one U+FFFD
    kIncomplete,  // the text ends inside a character that more bytes could complete
  };
  Kind kind;
  uint8_t size;         // bytes covered, 1..4
  char32_t code_point;  // when valid
};

// Looks at the start of `text`, which is not empty.
Utf8Step DecodeUtf8(std::string_view text);

// Length of the longest prefix made of ASCII.
size_t AsciiPrefix(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Every invalid or incomplete part becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

}  // namespace fathom::text
