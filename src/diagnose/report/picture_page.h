#pragma once
// The page that the SVG pictures share: its width, its colours, its heading.
#include <string_view>

#include "diagnose/report/svg.h"

namespace fathom::diagnose {

inline constexpr double kPageWidth = 1200;
inline constexpr double kPageMargin = 24;
inline constexpr std::string_view kInk = "#1d2129";
inline constexpr std::string_view kSoftInk = "#5b6472";

// The title and, below it, the note in as many lines as it takes; returns where the picture begins.
double DrawHeading(Svg& svg, std::string_view title, std::string_view note);

}  // namespace fathom::diagnose
