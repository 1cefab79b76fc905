#include "diagnose/rules/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "diagnose/embedded.h"
#include "diagnose/rules/rule.h"

namespace fathom::diagnose {
namespace {

using testing::HasSubstr;

TEST(Explain, EveryRuleHasItsPage) {
  for (const Rule& rule : Rules()) {
    const auto text = Explain(rule.id, Thresholds::Default());
    ASSERT_TRUE(text) << rule.id;
    EXPECT_THAT(*text, testing::StartsWith("# " + std::string(rule.id) + ": "));
    for (const char* part : {"## Why it costs", "## Rule", "Abstains", "## Limits", "## Fix",
                             "**vLLM**", "**SGLang**", "**PyTorch**", "**Fathom**"}) {
      EXPECT_THAT(*text, HasSubstr(part)) << rule.id;
    }
  }
  EXPECT_EQ(embedded::kRulePages.size(), Rules().size()) << "a page without a rule";
}

// A page states each limit of its rule by name with the shipped value.
TEST(Explain, PagesStateTheShippedLimits) {
  for (const auto& [name, t] : Thresholds::Default().all()) {
    const std::string_view id = std::string_view(name).substr(0, name.find('.'));
    bool found = false;
    for (const embedded::File& page : embedded::kRulePages) {
      if (page.name != id) continue;
      found = true;
      EXPECT_THAT(std::string(page.text),
                  HasSubstr(fmt::format("| `{}` | {:g} | {} |", name, t.default_value, t.unit)));
      if (t.handbook) {
        EXPECT_THAT(std::string(page.text), HasSubstr("(" + t.verdict));
      }
    }
    EXPECT_TRUE(found) << name << " belongs to no rule";
  }
}

TEST(Explain, ShowsWhatIsInForce) {
  const auto changed = Thresholds::FromJson(R"({"kv-copy.warn_share": 0.05})");
  ASSERT_TRUE(changed);
  EXPECT_THAT(*Explain("kv-copy", *changed), HasSubstr("(default 0.03)"));
}

TEST(Explain, UnknownRulesAreNamed) {
  const auto unknown = Explain("kv-copi", Thresholds::Default());
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("did you mean 'kv-copy'"));
  EXPECT_THAT(unknown.error().message, HasSubstr("softmax-pass"));
}

}  // namespace
}  // namespace fathom::diagnose
