#include "diagnose/readers/json_scan.h"

#include <charconv>
#include <cmath>
#include <optional>

namespace fathom::diagnose::json {
namespace {

constexpr int64_t kTimeLimit = int64_t{1} << 61;

bool IsDigit(char byte) { return byte >= '0' && byte <= '9'; }

// inf, Infinity, nan, NaN with any sign.
bool IsNonFinite(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text == "inf" || text == "Infinity" || text == "Inf" || text == "nan" || text == "NaN";
}

// mantissa x 10^scale, rounded towards zero; nothing outside the limit.
std::optional<int64_t> Scale(uint64_t mantissa, int64_t scale) {
  if (mantissa == 0) return 0;
  for (; scale < 0 && mantissa != 0; ++scale) mantissa /= 10;
  for (; scale > 0; --scale) {
    if (mantissa > static_cast<uint64_t>(kTimeLimit) / 10) return std::nullopt;
    mantissa *= 10;
  }
  if (mantissa > static_cast<uint64_t>(kTimeLimit)) return std::nullopt;
  return static_cast<int64_t>(mantissa);
}

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// The four hex digits at `at`, if there are four.
std::optional<uint32_t> Hex4(std::string_view raw, size_t at) {
  uint32_t code = 0;
  if (at + 4 > raw.size()) return std::nullopt;
  const char* const first = raw.data() + at;
  const auto [stop, error] = std::from_chars(first, first + 4, code, 16);
  if (error != std::errc() || stop != first + 4) return std::nullopt;
  return code;
}

}  // namespace

Number ToInteger(std::string_view text, int64_t* value) {
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++i;
  if (i == text.size() || !IsDigit(text[i])) {
    if (text == "true" || text == "false") {
      *value = text == "true" ? 1 : 0;
      return Number::kOk;
    }
    return IsNonFinite(text) ? Number::kNonFinite : Number::kNone;
  }
  uint64_t magnitude = 0;
  for (; i < text.size() && IsDigit(text[i]); ++i) {
    if (__builtin_mul_overflow(magnitude, 10u, &magnitude) ||
        __builtin_add_overflow(magnitude, static_cast<uint64_t>(text[i] - '0'), &magnitude)) {
      return Number::kNone;
    }
  }
  if (i < text.size() && text[i] != '.') {
    // An exponent, or digits that run into something else.
    double number = 0;
    if (ToDouble(text, &number) != Number::kOk || std::fabs(number) >= 0x1p63) return Number::kNone;
    *value = static_cast<int64_t>(number);
    return Number::kOk;
  }
  *value = static_cast<int64_t>(negative ? -magnitude : magnitude);
  return magnitude >> 63 != 0 ? Number::kBig : Number::kOk;
}

Number MicrosecondsToNs(std::string_view text, int64_t* ns) {
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++i;
  const size_t digits = i;
  uint64_t mantissa = 0;
  int64_t scale = 3;  // microseconds to nanoseconds
  for (; i < text.size() && IsDigit(text[i]); ++i) {
    if (mantissa >= UINT64_MAX / 10 - 1) {
      ++scale;  // beyond any digit that matters
    } else {
      mantissa = mantissa * 10 + static_cast<uint64_t>(text[i] - '0');
    }
  }
  if (i == digits) return IsNonFinite(text) ? Number::kNonFinite : Number::kNone;
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && IsDigit(text[i]); ++i) {
      if (mantissa >= UINT64_MAX / 10 - 1) continue;
      mantissa = mantissa * 10 + static_cast<uint64_t>(text[i] - '0');
      --scale;
    }
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    int exponent = 0;
    const bool plus = i + 1 < text.size() && text[i + 1] == '+';
    const auto [stop, error] =
        std::from_chars(text.data() + i + (plus ? 2 : 1), text.data() + text.size(), exponent);
    if (error != std::errc() || exponent > 64 || exponent < -64) return Number::kNone;
    scale += exponent;
    i = static_cast<size_t>(stop - text.data());
  }
  if (i != text.size()) return Number::kNone;
  const std::optional<int64_t> scaled = Scale(mantissa, scale);
  if (!scaled) return Number::kBig;
  *ns = negative ? -*scaled : *scaled;
  return Number::kOk;
}

Number ToDouble(std::string_view text, double* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || stop != text.data() + text.size()) {
    return IsNonFinite(text) ? Number::kNonFinite : Number::kNone;
  }
  return std::isfinite(*value) ? Number::kOk : Number::kNonFinite;
}

std::string Unescape(std::string_view raw, bool* bad_escape) {
  std::string text;
  text.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\' || i + 1 == raw.size()) {
      text += raw[i];
      continue;
    }
    const char kind = raw[i + 1];
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    if (const size_t at = kFrom.find(kind); at != std::string_view::npos) {
      text += kTo[at];
      ++i;
      continue;
    }
    const std::optional<uint32_t> unit = kind == 'u' ? Hex4(raw, i + 2) : std::nullopt;
    if (!unit || (*unit >= 0xdc00 && *unit < 0xe000)) {
      *bad_escape = true;
      text += raw[i];
      continue;
    }
    if (*unit < 0xd800 || *unit >= 0xe000) {
      AppendUtf8(*unit, text);
      i += 5;
      continue;
    }
    const std::optional<uint32_t> low =
        raw.substr(i + 6, 2) == "\\u" ? Hex4(raw, i + 8) : std::nullopt;
    if (!low || *low < 0xdc00 || *low >= 0xe000) {
      *bad_escape = true;
      text += raw[i];
      continue;
    }
    AppendUtf8(0x10000 + ((*unit - 0xd800) << 10) + (*low - 0xdc00), text);
    i += 11;
  }
  return text;
}

}  // namespace fathom::diagnose::json
