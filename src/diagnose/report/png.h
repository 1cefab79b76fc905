#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// An SVG document as PNG, `scale` pixels to each of its own (librsvg and cairo). Errors: no
// installed font has the letters of `language` (they would be empty boxes), a picture that is too
// large.
Result<std::string> PngFromSvg(std::string_view svg, Language language, double scale = 2);

}  // namespace fathom::diagnose
