#pragma once
// Small scanners that the line-oriented readers share. None of them throws; what does not parse is
// nothing.
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::diagnose {

// The number at the start of `text` (after spaces), with thousands commas ("240,000") taken out.
std::optional<double> LeadingNumber(std::string_view text);
// The number after the first `key` in `text`: NumberAfter("Running: 7 reqs", "Running: ") is 7.
std::optional<double> NumberAfter(std::string_view text, std::string_view key);
// The whole of `text`, trimmed.
std::optional<double> WholeNumber(std::string_view text);
std::optional<int64_t> WholeInteger(std::string_view text, int base = 10);

// The nearest int32 to a number that an input gives, `absent` when it gives none.
int32_t ToInt32(std::optional<double> value, int32_t absent);

// Takes what precedes `separator` off `text` ("" and everything when there is none).
std::string_view TakeUntil(std::string_view& text, std::string_view separator);
// Takes the next word (no white space) off `text`, with the spaces before it.
std::string_view TakeWord(std::string_view& text);
// All words of `text`.
std::vector<std::string_view> Words(std::string_view text);

// Logs write calendar time in a zone that they do not state: such times count as if they were UTC
// (ClockDomain::kWallLocal). A log without a year is put into this leap year.
inline constexpr int kYearNotStated = 1972;

// "2025-12-26 06:08:40", "2025-12-26T06:08:40.123", "05-26 05:04:36", "20261129 14:10:22" at the
// start of `text`, as ns since 1970 in that zone; takes it off `text`.
std::optional<int64_t> TakeDateTime(std::string_view& text);

// Splits a line of comma-separated values (RFC 4180: fields may be quoted, "" is a quote) into
// `fields`, unquoted. The views live as long as the next call of the same splitter and the line.
class CsvSplitter {
 public:
  const std::vector<std::string_view>& Split(std::string_view line);

 private:
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  // fields that held "" or were put together
};

}  // namespace fathom::diagnose
