#pragma once
#include <string>

#include "diagnose/diagnosis.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

// For bug trackers and chat: tables of phases and findings.
std::string MarkdownReport(const Diagnosis& diagnosis, Language language);

}  // namespace fathom::diagnose
