#pragma once
// Files that the program carries: src/diagnose/CMakeLists.txt turns them into these strings.
#include <string_view>

namespace fathom::diagnose::embedded {

extern const std::string_view kThresholds;   // rules/thresholds.json
extern const std::string_view kCatalogueEn;  // report/catalogue.en.json
extern const std::string_view kCatalogueZh;  // report/catalogue.zh.json

}  // namespace fathom::diagnose::embedded
