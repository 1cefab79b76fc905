#pragma once
// Nsight Compute's CSV (--csv, with or without --page raw): details pages of metric and rule rows,
// or a wide raw page with a row of units. Program output around the table is skipped.
#include <string>
#include <string_view>

#include "diagnose/readers/reader.h"

namespace fathom::diagnose {

extern const Reader kNcuReader;

// How a locale writes numbers: "1,234.5" or "1.234,5".
struct NumberStyle {
  char group = ',';
  char point = '.';
};

// What the numbers of one file say about its locale: a number with both signs, a sign that comes
// twice, or one that is not followed by three digits.
class NumberStyleGuess {
 public:
  void See(std::string_view number);
  NumberStyle style() const {
    return comma_decimal_ > point_decimal_ ? NumberStyle{'.', ','} : NumberStyle{',', '.'};
  }

 private:
  uint64_t point_decimal_ = 0;
  uint64_t comma_decimal_ = 0;
};

// The number that `text` holds in that style, NaN when it is none ("n/a", a word). A multiple-value
// field "12 (3; 4)" gives its first number.
double ParseNumber(std::string_view text, NumberStyle style);

// The base unit of `unit` and the factor to it: "Mbyte/s" -> ("byte/s", 1e6), "usecond" -> ("ns",
// 1e3), "cycle/nsecond" -> ("hz", 1e9). Unknown units are their own base.
struct ScaledUnit {
  std::string base;
  double factor = 1;
};
ScaledUnit NormalizeUnit(std::string_view unit);

}  // namespace fathom::diagnose
