#pragma once
// fathom diagnose --explain ID: the rule's page (docs/diagnose/<id>.md) with the limits in force.
#include <string>
#include <string_view>

#include "base/result.h"
#include "diagnose/rules/thresholds.h"

namespace fathom::diagnose {

// The page of rule `id`, then its limits as they stand. An unknown id is an error that names the
// nearest and lists all.
Result<std::string> Explain(std::string_view id, const Thresholds& thresholds);

}  // namespace fathom::diagnose
