#include "diagnose/rules/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/strings.h"
#include "diagnose/embedded.h"
#include "diagnose/rules/rule.h"

namespace fathom::diagnose {

Result<std::string> Explain(std::string_view id, const Thresholds& thresholds) {
  std::vector<std::string_view> ids;
  for (const Rule& rule : Rules()) ids.push_back(rule.id);
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
    const std::string_view nearest = Nearest(id, ids);
    return Err(Code::kInvalidArgument, "--explain {}: no such rule{}; the rules are: {}", id,
               nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
               fmt::join(ids, " "));
  }
  const auto page = std::find_if(embedded::kRulePages.begin(), embedded::kRulePages.end(),
                                 [&](const embedded::File& file) { return file.name == id; });
  FATHOM_CHECK(page != embedded::kRulePages.end(), "rule {} has no page", id);
  std::string out(page->text);
  out += "\n## In force\n\n";
  const std::string prefix = std::string(id) + '.';
  bool any = false;
  for (const auto& [name, t] : thresholds.all()) {
    if (!name.starts_with(prefix)) continue;
    any = true;
    out += fmt::format("  {:42} {:>8} {}", name, fmt::format("{:g}", t.value), t.unit);
    if (t.value != t.default_value) out += fmt::format(" (default {:g})", t.default_value);
    out += fmt::format("; legal {:g} to {:g}", t.least, t.most);
    if (t.handbook) {
      const char* state = t.reference ? ", for reference" : t.enabled ? ", on" : ", off";
      out += fmt::format("; handbook, {}{}", t.verdict, state);
    }
    out += '\n';
  }
  if (!any) out += "  this rule has no limits\n";
  return out;
}

}  // namespace fathom::diagnose
