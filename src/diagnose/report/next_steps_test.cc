#include "diagnose/report/next_steps.h"

#include <gtest/gtest.h>

#include <set>

#include "diagnose/diagnosis.h"

namespace fathom::diagnose {
namespace {

TEST(NextSteps, EveryRuleThatAbstainsHasAnArtifact) {
  Timeline empty;
  empty.AddSource("nothing", "kineto");
  const Diagnosis d = Diagnose(std::move(empty), Thresholds::Default());
  std::set<std::string_view> settled;
  const std::vector<NextStep> steps = NextSteps(d.findings);
  for (const NextStep& step : steps) settled.insert(step.rules.begin(), step.rules.end());
  for (const Abstention& a : d.findings.abstained) EXPECT_TRUE(settled.contains(a.id)) << a.id;
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_GE(steps[i - 1].rules.size(), steps[i].rules.size());
  }
  for (const Language language : {Language::kEnglish, Language::kChinese}) {
    EXPECT_NE(NextStepsText(steps, language).find("ncu --set full"), std::string::npos);
  }
}

TEST(NextSteps, NothingOpenNothingToRecord) {
  EXPECT_TRUE(NextSteps(Findings{}).empty());
  EXPECT_EQ(NextStepsText({}, Language::kEnglish), "");
}

}  // namespace
}  // namespace fathom::diagnose
