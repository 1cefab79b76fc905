#include "text/unicode.h"

#include <algorithm>
#include <cstring>

namespace fathom::text {

bool Contains(std::span<const CodePointRange> table, char32_t code_point) {
  const auto next =
      std::upper_bound(table.begin(), table.end(), code_point,
                       [](char32_t value, const CodePointRange& r) { return value < r.first; });
  return next != table.begin() && code_point <= std::prev(next)->last;
}

bool IsWhiteSpace(char32_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

Utf8Step DecodeUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Step::Kind::kValid, 1, lead};
  // The second byte has a narrower range after E0, ED, F0 and F4 (Unicode table 3-7).
  uint8_t length = 0, low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::Kind::kInvalid, 1, 0};
  }
  char32_t code_point = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {Utf8Step::Kind::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8Step::Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Kind::kValid, length, code_point};
}

size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

bool IsValidUtf8(std::string_view text) {
  for (size_t i = AsciiPrefix(text); i < text.size(); i += AsciiPrefix(text.substr(i))) {
    const Utf8Step step = DecodeUtf8(text.substr(i));
    if (step.kind != Utf8Step::Kind::kValid) return false;
    i += step.size;
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(i));
    out += step.kind == Utf8Step::Kind::kValid ? text.substr(i, step.size) : kReplacementCharacter;
    i += step.size;
  }
  return out;
}

void AppendUtf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace fathom::text
