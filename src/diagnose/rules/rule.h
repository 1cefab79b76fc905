#pragma once
// A rule reads the timeline and what was understood of it and adds findings, or says why it cannot.
#include <span>
#include <string_view>
#include <vector>

#include "diagnose/finding.h"
#include "diagnose/rules/thresholds.h"
#include "diagnose/understand/accounting.h"
#include "diagnose/understand/steps.h"
#include "diagnose/understand/trace_index.h"

namespace fathom::diagnose {

struct RuleContext {
  const Timeline& timeline;
  const TraceIndex& index;
  const Steps& steps;
  const std::vector<StepAccount>& accounts;  // one a step
  const Thresholds& thresholds;

  const StepAccount& account(uint32_t step) const { return accounts[step]; }
};

struct Rule {
  std::string_view id;
  void (*run)(const RuleContext& context, Findings& findings);
};

// All rules, in the order of a report: what was copied, what stalled, what was slow, what the
// servers say.
std::span<const Rule> Rules();

// Runs every rule; a rule that neither found nor abstained is listed as clean.
Findings RunRules(const RuleContext& context);

// --- what rules share ---

double Median(std::vector<double> values);  // NaN when empty
// Median over a bucket's counted steps of f(step index).
template <class F>
double MedianOver(const Bucket& bucket, F&& f) {
  std::vector<double> values;
  values.reserve(bucket.counted.size());
  for (const uint32_t step : bucket.counted) values.push_back(f(step));
  return Median(std::move(values));
}

// How sure a statement about a bucket can be: few steps, Python stacks (for CPU times) and lost
// records lower it.
double ConfidenceFor(const RuleContext& context, const Bucket& bucket, bool about_cpu_time);

// "12.3" with as many digits as make sense.
std::string Number(double value);
std::string Percent(double share);
// "166 us", "4.56 ms".
std::string Duration(double ns);

}  // namespace fathom::diagnose
