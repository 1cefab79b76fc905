#include "diagnose/report/picture_page.h"

namespace fathom::diagnose {

double DrawHeading(Svg& svg, std::string_view title, std::string_view note) {
  svg.Text(kPageMargin, 28, title, {.size = 18, .bold = true});
  double y = 54;
  for (const std::string& line : WrapText(note, kPageWidth - 2 * kPageMargin, 12)) {
    svg.Text(kPageMargin, y, line, {.fill = kSoftInk});
    y += 18;
  }
  return y + 10;
}

}  // namespace fathom::diagnose
