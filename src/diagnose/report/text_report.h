#pragma once
#include <string>
#include <string_view>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// Escape sequences for a terminal; empty for a file.
struct TextStyle {
  std::string_view bold, dim, red, yellow, green, reset;
  size_t columns = 0;  // lines are broken to fit; 0: never, as in a file that somebody greps
};

// The report that a terminal shows: what can be trusted, the three steps, findings by saving.
std::string TextReport(const Diagnosis& diagnosis, Language language, const TextStyle& style);

// `text` broken at spaces and between ideographs into lines of at most `columns` cells of a
// terminal; lines after the first are indented by `indent`. Escape sequences take no room.
std::string BreakLines(std::string_view text, size_t columns, size_t indent);

}  // namespace fathom::diagnose
