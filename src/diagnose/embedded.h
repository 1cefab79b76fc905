#pragma once
// Files that the program carries: src/diagnose/CMakeLists.txt turns them into these strings.
#include <span>
#include <string_view>

namespace fathom::diagnose::embedded {

extern const std::string_view kThresholds;   // rules/thresholds.json
extern const std::string_view kCatalogueEn;  // report/catalogue.en.json
extern const std::string_view kCatalogueZh;  // report/catalogue.zh.json
extern const std::string_view kLimitsZh;     // report/limits.zh.json
extern const std::string_view kHtml;         // report/html/report.html
extern const std::string_view kStyle;        // report/html/report.css
extern const std::string_view kScript;       // report/html/report.js
extern const std::string_view kPictures;     // report/html/pictures.js
extern const std::string_view kChartJs;  // Chart.js, MIT, from the Debian package libjs-chart.js

struct File {
  std::string_view name;  // without its extension
  std::string_view text;
};
extern const std::span<const File> kRulePages;  // docs/diagnose/<rule id>.md

}  // namespace fathom::diagnose::embedded
