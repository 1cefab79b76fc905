#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// Schema "fathom.report/1" (docs/schemas/report.schema.json). Numbers that are not known are null.
nlohmann::ordered_json JsonReport(const Diagnosis& diagnosis, Language language);

}  // namespace fathom::diagnose
