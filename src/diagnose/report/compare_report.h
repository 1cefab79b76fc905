#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "diagnose/compare.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

std::string CompareText(const Comparison& comparison, Language language);
// fathom.compare/1 (docs/schemas/compare.schema.json).
nlohmann::ordered_json CompareJson(const Comparison& comparison);

}  // namespace fathom::diagnose
