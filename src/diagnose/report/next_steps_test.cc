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
    EXPECT_NE(NextStepsText(steps, {}, language).find("ncu --set full"), std::string::npos);
  }
}

TEST(NextSteps, DependOnWhatTheMachineHas) {
  Findings findings;
  findings.abstained.push_back({"kv-copy", {"abstain.no_gpu_steps", {}}});
  const std::vector<NextStep> other = NextSteps(findings);
  EXPECT_NE(NextStepsText(other, {}, Language::kEnglish).find("start_profile"), std::string::npos);
  const Seen own = {.gpu = false, .fathom = true};
  const std::string text = NextStepsText(NextSteps(findings, own), own, Language::kEnglish);
  EXPECT_NE(text.find("where the GPU is"), std::string::npos);
  EXPECT_NE(text.find("fathom serve MODEL --trace"), std::string::npos);
  EXPECT_EQ(text.find("start_profile"), std::string::npos);
}

TEST(NextSteps, NothingOpenNothingToRecord) {
  EXPECT_TRUE(NextSteps(Findings{}).empty());
  EXPECT_EQ(NextStepsText({}, {}, Language::kEnglish), "");
}

}  // namespace
}  // namespace fathom::diagnose
