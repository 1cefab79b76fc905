#pragma once
// Scanning JSON text where it lies, tolerant of what trace producers get wrong: control bytes and
// bad escapes in strings, inf and nan, integers beyond int64. Nothing here allocates or recurses.
//
// Callers guarantee Window::kPadding readable bytes behind `end`. A scan that reaches `end` fails
// with kMore (the record goes on in bytes not read yet); one that meets a wrong byte with kBad.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace fathom::diagnose::json {

enum class Scan : uint8_t { kOk, kMore, kBad };

// A string as written, without its quotes.
struct Token {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool escaped = false;  // holds a backslash
  bool control = false;  // holds a raw control byte

  std::string_view view() const { return {begin, static_cast<size_t>(end - begin)}; }
};

struct Cursor {
  const char* p;
  const char* end;

  Scan Fail() const { return p >= end ? Scan::kMore : Scan::kBad; }
};

inline void SkipSpace(Cursor& c) {
  while (c.p < c.end && (*c.p == ' ' || *c.p == '\n' || *c.p == '\r' || *c.p == '\t')) ++c.p;
}

// c.p is behind the opening quote; afterwards behind the closing one.
inline Scan ScanString(Cursor& c, Token& token) {
  token.begin = c.p;
  token.escaped = false;
  token.control = false;
  const char* p = c.p;
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const __m128i last_control = _mm_set1_epi8(0x1f);
#endif
  while (p < c.end) {
#ifdef __SSE2__
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto stops = static_cast<uint32_t>(_mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash))));
    const auto controls = static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(bytes, last_control), last_control)));
    if (stops == 0) {
      token.control |= controls != 0;
      p += 16;
      continue;
    }
    const int first = __builtin_ctz(stops);
    token.control |= (controls & ((1u << first) - 1)) != 0;
    p += first;
    if (p >= c.end) break;
#else
    if (*p != '"' && *p != '\\') {
      token.control |= static_cast<unsigned char>(*p) < 0x20;
      ++p;
      continue;
    }
#endif
    if (*p == '"') {
      token.end = p;
      c.p = p + 1;
      return Scan::kOk;
    }
    token.escaped = true;
    p += 2;
  }
  c.p = c.end;
  return Scan::kMore;
}

// Skips an array or object; c.p is on its bracket, afterwards behind the matching one. Kinds of
// brackets are not matched against each other.
inline Scan SkipNested(Cursor& c) {
  int depth = 0;
  const char* p = c.p;
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i fold = _mm_set1_epi8(0x20);
  const __m128i open = _mm_set1_epi8('{');   // '[' | 0x20
  const __m128i close = _mm_set1_epi8('}');  // ']' | 0x20
  while (p < c.end) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i folded = _mm_or_si128(bytes, fold);
    const auto opens = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(folded, open)));
    const auto closes = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(folded, close)));
    const auto quotes = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, quote)));
    const char* next = p + 16;
    for (uint32_t stops = opens | closes | quotes; stops != 0; stops &= stops - 1) {
      const int i = __builtin_ctz(stops);
      if (p + i >= c.end) break;
      if (quotes >> i & 1) {
        Cursor inner{p + i + 1, c.end};
        Token token;
        if (ScanString(inner, token) != Scan::kOk) {
          c.p = c.end;
          return Scan::kMore;
        }
        next = inner.p;
        break;
      }
      depth += opens >> i & 1 ? 1 : -1;
      if (depth == 0) {
        c.p = p + i + 1;
        return Scan::kOk;
      }
    }
    p = next;
  }
#else
  while (p < c.end) {
    if (*p == '"') {
      Cursor inner{p + 1, c.end};
      Token token;
      if (ScanString(inner, token) != Scan::kOk) break;
      p = inner.p;
      continue;
    }
    if (*p == '{' || *p == '[') ++depth;
    if (*p == '}' || *p == ']') {
      if (--depth == 0) {
        c.p = p + 1;
        return Scan::kOk;
      }
    }
    ++p;
  }
#endif
  c.p = c.end;
  return Scan::kMore;
}

// Whether `byte` may follow a number or a word.
inline bool EndsScalar(char byte) {
  return byte == ',' || byte == '}' || byte == ']' || byte == ' ' || byte == '\n' || byte == '\r' ||
         byte == '\t';
}

// Skips a number or a word (true, null, inf, NaN).
inline Scan SkipScalar(Cursor& c) {
  const char* const begin = c.p;
  while (c.p < c.end && !EndsScalar(*c.p) && *c.p != '"' && *c.p != ':') ++c.p;
  if (c.p >= c.end) return Scan::kMore;
  return c.p == begin || *c.p == '"' || *c.p == ':' ? Scan::kBad : Scan::kOk;
}

inline Scan SkipValue(Cursor& c) {
  if (c.p >= c.end) return Scan::kMore;
  if (*c.p == '"') {
    ++c.p;
    Token token;
    return ScanString(c, token);
  }
  if (*c.p == '{' || *c.p == '[') return SkipNested(c);
  return SkipScalar(c);
}

enum class Number : uint8_t { kOk, kBig, kNonFinite, kNone };

// The integer of a scalar's text, its fraction cut off; kBig keeps the low 64 bits of an unsigned
// integer beyond int64. true and false are 1 and 0.
Number ToInteger(std::string_view text, int64_t* value);
// A decimal number of microseconds as nanoseconds, without passing through a double. kBig when the
// result is outside +-2^61.
Number MicrosecondsToNs(std::string_view text, int64_t* ns);
Number ToDouble(std::string_view text, double* value);

// The text of a token with its escapes resolved; `bad_escape` is set when some had to be kept as
// they are.
std::string Unescape(std::string_view raw, bool* bad_escape);

}  // namespace fathom::diagnose::json
