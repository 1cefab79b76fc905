#pragma once
// What to record next for what a diagnosis could not decide: one artifact settles several rules.
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "diagnose/finding.h"
#include "diagnose/report/catalogue.h"

namespace fathom::diagnose {

struct NextStep {
  std::string_view artifact;  // key of "next.<artifact>": "trace", "ncu", "perf", ...
  std::string_view command;
  std::vector<std::string_view> rules;  // that it would let decide, of those that abstained
};

// What the machine turned out to have: commands depend on it.
struct Seen {
  bool gpu = true;
  bool fathom = false;  // the server is Fathom's own
};

// Those that settle most come first.
std::vector<NextStep> NextSteps(const Findings& findings, const Seen& seen = {});

std::string NextStepsText(const std::vector<NextStep>& steps, const Seen& seen, Language language);
nlohmann::ordered_json NextStepsJson(const std::vector<NextStep>& steps, Language language);

}  // namespace fathom::diagnose
