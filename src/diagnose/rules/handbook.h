#pragma once
// The handbook's figures as limits of their own, beside the trusted rules. Each that is enabled is
// held against what the artifacts show and noted, as information, where it is passed: with its
// verdict and its counter-example, since most of these figures were true of one machine at best.
// Four of them belong to the trusted rules, which read them themselves: kv-copy.handbook_abs_ms,
// switch-stall.handbook_gap_us, prefix-cache.handbook_rate, cache-version.handbook_mismatches.
#include <optional>
#include <span>
#include <string_view>

#include "diagnose/rules/rule.h"

namespace fathom::diagnose {

struct HandbookLimit {
  std::string_view name;  // of the threshold
  bool below = false;     // passed by values below it, not above
  // In the threshold's unit; nothing when the artifacts do not show it.
  std::optional<double> (*measure)(const RuleContext& context);
};
std::span<const HandbookLimit> HandbookLimits();

// Notes every enabled limit that is passed, and abstains from those that cannot be measured.
void HandbookFigures(const RuleContext& context, Findings& findings);

}  // namespace fathom::diagnose
