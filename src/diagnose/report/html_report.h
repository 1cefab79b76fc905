#pragma once
// One HTML file that opens offline: findings that lead to their place in the timeline, steps, tail,
// gap causes, roofline, flame graph, heat map, expert loads, metric lanes. Charts by Chart.js
// (MIT), inlined; the rest is drawn by report/html/pictures.js.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"
#include "diagnose/understand/address_map.h"

namespace fathom::diagnose {

// What the page shows: everything, or one picture.
enum class Picture : uint8_t { kAll, kHeatMap, kRoofline, kFlame };

std::string HtmlReport(const Diagnosis& diagnosis, Language language,
                       Picture picture = Picture::kAll);
// One memory-address map.
std::string HtmlReport(const AddressHeatMap& map, Language language);

// The data behind the page (html_data.cc); its shape is the page's own business, not a schema.
nlohmann::ordered_json HtmlData(const Diagnosis& diagnosis, Language language, Picture picture);
nlohmann::ordered_json HtmlData(const AddressHeatMap& map, Language language);

}  // namespace fathom::diagnose
