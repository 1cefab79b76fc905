#include "diagnose/report/html_report.h"

#include "diagnose/embedded.h"

namespace fathom::diagnose {
namespace {

void Replace(std::string& page, std::string_view mark, std::string_view text) {
  const size_t at = page.find(mark);
  if (at != std::string::npos) page.replace(at, mark.size(), text);
}

// JSON inside a script element must not end it.
std::string ForScript(std::string json) {
  for (size_t at = json.find("</"); at != std::string::npos; at = json.find("</", at + 3)) {
    json.replace(at, 2, "<\\/");
  }
  for (size_t at = json.find("<!--"); at != std::string::npos; at = json.find("<!--", at + 5)) {
    json.replace(at, 4, "<\\u0021--");
  }
  return json;
}

std::string Page(const nlohmann::ordered_json& data, Language language, bool charts) {
  std::string page(embedded::kHtml);
  // Invalid UTF-8 was replaced when the inputs were read; "replace" keeps a surprise from throwing.
  const std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  Replace(page, "{{lang}}", LanguageName(language));
  Replace(page, "{{style}}", embedded::kStyle);
  Replace(page, "{{chart}}", charts ? embedded::kChartJs : std::string_view());
  Replace(page, "{{pictures}}", embedded::kPictures);
  Replace(page, "{{script}}", embedded::kScript);
  Replace(page, "{{data}}", ForScript(text));
  return page;
}

}  // namespace

std::string HtmlReport(const Diagnosis& diagnosis, Language language, Picture picture) {
  return Page(HtmlData(diagnosis, language, picture), language,
              picture == Picture::kAll || picture == Picture::kRoofline);
}

std::string HtmlReport(const AddressHeatMap& map, Language language) {
  return Page(HtmlData(map, language), language, /*charts=*/false);
}

}  // namespace fathom::diagnose
