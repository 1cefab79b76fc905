#pragma once
// What tests of rules ask of a diagnosis.
#include <algorithm>
#include <string_view>

#include "diagnose/diagnosis.h"
#include "diagnose/rules/synthetic_timeline.h"

namespace fathom::diagnose {

inline Diagnosis DiagnoseSynthetic(const SyntheticOptions& options,
                                   const Thresholds& thresholds = Thresholds::Default()) {
  return Diagnose(MakeSynthetic(options), thresholds);
}

inline const Finding* Find(const Diagnosis& d, std::string_view id) {
  for (const Finding& f : d.findings.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

inline bool Abstained(const Diagnosis& d, std::string_view id) {
  return std::any_of(d.findings.abstained.begin(), d.findings.abstained.end(),
                     [&](const Abstention& a) { return a.id == id; });
}

inline bool IsClean(const Diagnosis& d, std::string_view id) {
  return std::find(d.findings.clean.begin(), d.findings.clean.end(), id) != d.findings.clean.end();
}

}  // namespace fathom::diagnose
