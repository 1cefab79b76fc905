#pragma once
#include <string>
#include <string_view>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// Escape sequences for a terminal; empty for a file.
struct TextStyle {
  std::string_view bold, dim, red, yellow, green, reset;
};

// The report that a terminal shows: what can be trusted, the three steps, findings by saving.
std::string TextReport(const Diagnosis& diagnosis, Language language, const TextStyle& style);

}  // namespace fathom::diagnose
