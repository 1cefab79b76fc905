#include "diagnose/readers/text_scan.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "base/strings.h"

namespace fathom::diagnose {
namespace {

bool IsDigit(char byte) { return byte >= '0' && byte <= '9'; }

// Exactly `digits` digits at the start of `text`, taken off it.
std::optional<int> TakeDigits(std::string_view& text, size_t digits) {
  if (text.size() < digits) return std::nullopt;
  int value = 0;
  for (size_t i = 0; i < digits; ++i) {
    if (!IsDigit(text[i])) return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool TakeByte(std::string_view& text, char byte) {
  if (text.empty() || text[0] != byte) return false;
  text.remove_prefix(1);
  return true;
}

struct Date {
  int year, month, day;
};

// 2025-12-26, 20251226, 12-26, 2025/12/26.
std::optional<Date> TakeDate(std::string_view& text) {
  std::string_view rest = text;
  Date date{kYearNotStated, 0, 0};
  if (std::optional<int> year = TakeDigits(rest, 4)) {
    date.year = *year;
    if (!TakeByte(rest, '-')) TakeByte(rest, '/');
  }
  const std::optional<int> month = TakeDigits(rest, 2);
  if (!TakeByte(rest, '-')) TakeByte(rest, '/');
  const std::optional<int> day = TakeDigits(rest, 2);
  if (!month || !day || *month < 1 || *month > 12 || *day < 1 || *day > 31) return std::nullopt;
  text = rest;
  return Date{date.year, *month, *day};
}

}  // namespace

std::optional<double> LeadingNumber(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
  char digits[64];
  size_t length = 0;
  for (size_t i = 0; i < text.size() && length < sizeof(digits); ++i) {
    const char byte = text[i];
    // A comma groups digits only between a digit and three more.
    if (byte == ',' && i > 0 && IsDigit(text[i - 1]) && i + 3 < text.size() &&
        IsDigit(text[i + 1]) && IsDigit(text[i + 2]) && IsDigit(text[i + 3])) {
      continue;
    }
    if (!IsDigit(byte) && byte != '.' && byte != '-' && byte != '+' && byte != 'e' && byte != 'E') {
      break;
    }
    digits[length++] = byte;
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(digits, digits + length, value);
  if (error != std::errc() || stop == digits || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> NumberAfter(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  return LeadingNumber(text.substr(at + key.size()));
}

std::optional<double> WholeNumber(std::string_view text) {
  text = Trim(text);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> WholeInteger(std::string_view text, int base) {
  text = Trim(text);
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

int32_t ToInt32(std::optional<double> value, int32_t absent) {
  if (!value || std::isnan(*value)) return absent;
  return static_cast<int32_t>(std::clamp(*value, -2147483648.0, 2147483647.0));
}

std::string_view TakeUntil(std::string_view& text, std::string_view separator) {
  const size_t at = text.find(separator);
  const std::string_view taken = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + separator.size());
  return taken;
}

std::string_view TakeWord(std::string_view& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    text = {};
    return {};
  }
  const size_t end = std::min(text.find_first_of(" \t", begin), text.size());
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::string_view word = TakeWord(text); !word.empty(); word = TakeWord(text)) {
    words.push_back(word);
  }
  return words;
}

std::optional<int64_t> TakeDateTime(std::string_view& text) {
  std::string_view rest = text;
  const std::optional<Date> date = TakeDate(rest);
  if (!date) return std::nullopt;
  const size_t spaces = std::min(rest.find_first_not_of(" T\t"), rest.size());
  if (spaces == 0) return std::nullopt;
  rest.remove_prefix(spaces);
  const std::optional<int> hour = TakeDigits(rest, 2);
  if (!hour || !TakeByte(rest, ':')) return std::nullopt;
  const std::optional<int> minute = TakeDigits(rest, 2);
  if (!minute || !TakeByte(rest, ':')) return std::nullopt;
  const std::optional<int> second = TakeDigits(rest, 2);
  if (!second || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  int64_t fraction_ns = 0;
  if (rest.size() > 1 && (rest[0] == '.' || rest[0] == ',') && IsDigit(rest[1])) {
    rest.remove_prefix(1);
    int64_t unit = 100'000'000;
    for (; !rest.empty() && IsDigit(rest[0]); rest.remove_prefix(1), unit /= 10) {
      fraction_ns += unit * (rest[0] - '0');
    }
  }
  const std::chrono::year_month_day civil{std::chrono::year(date->year),
                                          std::chrono::month(static_cast<unsigned>(date->month)),
                                          std::chrono::day(static_cast<unsigned>(date->day))};
  // The distance of two dates must be a time in ns, too.
  if (!civil.ok() || date->year < 1970 || date->year > 2200) return std::nullopt;
  const int64_t days = std::chrono::sys_days(civil).time_since_epoch().count();
  text = rest;
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * 1'000'000'000 + fraction_ns;
}

const std::vector<std::string_view>& CsvSplitter::Split(std::string_view line) {
  fields_.clear();
  unquoted_.clear();
  size_t at = 0;
  for (;;) {
    if (at < line.size() && line[at] == '"') {
      size_t close = ++at;
      bool doubled = false;
      while ((close = line.find('"', close)) != std::string_view::npos && close + 1 < line.size() &&
             line[close + 1] == '"') {
        doubled = true;
        close += 2;
      }
      close = std::min(close, line.size());
      std::string_view field = line.substr(at, close - at);
      if (doubled) {
        std::string& text = unquoted_.emplace_back();
        for (size_t i = 0; i < field.size(); ++i) {
          text += field[i];
          if (field[i] == '"') ++i;
        }
        field = text;
      }
      fields_.push_back(field);
      at = std::min(line.find(',', close), line.size());
    } else {
      const size_t end = std::min(line.find(',', at), line.size());
      fields_.push_back(line.substr(at, end - at));
      at = end;
    }
    if (at >= line.size()) return fields_;
    ++at;  // the comma
  }
}

}  // namespace fathom::diagnose
