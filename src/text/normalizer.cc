#include "text/normalizer.h"

#include <utf8proc.h>

#include <vector>

#include "base/check.h"
#include "text/unicode.h"

namespace fathom::text {
namespace {

constexpr char32_t kFirstActive = 0x300;  // everything below is its own NFC
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

void AppendNfc(std::string_view text, std::string& out) {
  if (text.empty()) return;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> code_points(text.size() * 2 + 16);
  utf8proc_ssize_t count = utf8proc_decompose(
      bytes, size, code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kCompose);
  if (count > static_cast<utf8proc_ssize_t>(code_points.size())) {
    code_points.resize(static_cast<size_t>(count));
    count = utf8proc_decompose(bytes, size, code_points.data(), count, kCompose);
  }
  FATHOM_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
  count = utf8proc_normalize_utf32(code_points.data(), count, kCompose);
  FATHOM_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendUtf8(static_cast<char32_t>(code_points[static_cast<size_t>(i)]), out);
  }
}

}  // namespace

bool IsTriviallyNfc(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    i += AsciiPrefix(text.substr(i));
    if (i == text.size()) break;
    const Utf8Step step = DecodeUtf8(text.substr(i));
    const char32_t c = step.code_point;
    // The unified ideographs lie between two active ranges: most of a Chinese text ends here.
    const bool ideograph = c >= 0x3400 && c <= 0x9FFF;
    if (c >= kFirstActive && !ideograph && Contains(NfcActive(), c)) return false;
    i += step.size;
  }
  return true;
}

std::string NormalizeNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(i));
    if (step.code_point >= kFirstActive && Contains(NfcInert(), step.code_point)) {
      AppendNfc(text.substr(begin, i - begin), out);
      out += text.substr(i, step.size);
      begin = i + step.size;
    }
    i += step.size;
  }
  AppendNfc(text.substr(begin), out);
  return out;
}

}  // namespace fathom::text
