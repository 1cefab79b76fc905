#include "base/strings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

namespace fathom {
namespace {

// Three significant digits: 9.87, 98.7, 987.
std::string ThreeDigits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B",   "KiB", "MiB",
                                                             "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{} {}", ThreeDigits(value), kUnits[unit]);
}

std::string HumanNs(int64_t ns) {
  const double value = std::fabs(static_cast<double>(ns));
  const char* sign = ns < 0 ? "-" : "";
  if (value < 1e3) return fmt::format("{}{:.0f} ns", sign, value);
  if (value < 999.5e3) return fmt::format("{}{} us", sign, ThreeDigits(value / 1e3));
  if (value < 999.5e6) return fmt::format("{}{} ms", sign, ThreeDigits(value / 1e6));
  return fmt::format("{}{} s", sign, ThreeDigits(value / 1e9));
}

Result<uint64_t> ParseBytes(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value);
  std::string_view unit(end, static_cast<size_t>(trimmed.data() + trimmed.size() - end));
  unit = Trim(unit);
  std::string lower(unit);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.ends_with("ib")) lower.resize(lower.size() - 2);
  if (lower.size() == 2 && lower[1] == 'b') lower.resize(1);
  static constexpr std::string_view kPrefixes = "kmgt";
  int shift = -1;
  if (lower.empty() || lower == "b") shift = 0;
  if (lower.size() == 1 && kPrefixes.find(lower[0]) != std::string_view::npos) {
    shift = 10 * (static_cast<int>(kPrefixes.find(lower[0])) + 1);
  }
  if (error != std::errc() || shift < 0 ||
      value > (std::numeric_limits<uint64_t>::max() >> shift)) {
    return Err(Code::kInvalidArgument,
               "expected a number of bytes such as 8GiB, 512M or 1073741824, found '{}'", text);
  }
  return value << shift;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(separator, begin);
    if (end == std::string_view::npos) {
      parts.push_back(text.substr(begin));
      return parts;
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string_view Trim(std::string_view text) {
  static constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(word.size() / 3, 1) + 1;
  for (std::string_view candidate : known) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

uint64_t Hash64(std::string_view bytes, uint64_t seed) {
  uint64_t h = seed;
  for (const char c : bytes) {
    h ^= static_cast<unsigned char>(c);
    h *= 0x100000001b3u;
  }
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdu;
  h ^= h >> 33;
  return h;
}

}  // namespace fathom
