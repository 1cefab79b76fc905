#include "diagnose/report/compare_report.h"

#include <fmt/format.h>

#include <cmath>

#include "diagnose/report/describe.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string Signed(double share) { return fmt::format("{:+.1f}%", share * 100); }

}  // namespace

std::string CompareText(const Comparison& c, Language language) {
  std::string out = fmt::format("{}\n", Say(language, "compare.steps"));
  if (c.buckets.empty()) out += "  " + Say(language, "compare.no_buckets") + "\n";
  for (const BucketChange& b : c.buckets) {
    const std::string batch = std::isnan(b.batch) ? "" : fmt::format(" bs={:g}", b.batch);
    const std::string error =
        std::isnan(b.error_ms)
            ? Say(language, "compare.no_spread")
            : fmt::format("{}: {} ms", Say(language, "compare.error"), Number(b.error_ms));
    out += fmt::format("  {}{}: {} ms -> {} ms ({}), {} ({}; {} / {} {})\n",
                       PhaseWord(language, b.phase), batch, Number(b.before_ms), Number(b.after_ms),
                       Signed(b.share()),
                       Say(language, fmt::format("compare.{}", VerdictName(b.verdict))), error,
                       b.steps_before, b.steps_after, Say(language, "html.steps_row"));
    for (const PartChange& p : b.parts) {
      const std::string name =
          p.idle ? Say(language, Text{"report.idle",
                                      {{"cause", Say(language, fmt::format("cause.{}", p.name))}}})
                 : Say(language, fmt::format("class.{}", p.name));
      out += fmt::format("    {}: {} -> {}\n", name, Duration(p.before_ms * 1e6),
                         Duration(p.after_ms * 1e6));
    }
  }
  if (c.unmatched_before + c.unmatched_after > 0) {
    out += "  " +
           Say(language, Text{"compare.unmatched",
                              {{"a", std::to_string(c.unmatched_before)},
                               {"b", std::to_string(c.unmatched_after)}}}) +
           "\n";
  }
  out += fmt::format("\n{}\n", Say(language, "compare.findings"));
  if (c.findings.empty()) out += "  " + Say(language, "report.no_findings") + "\n";
  for (const FindingChange& f : c.findings) {
    out += fmt::format("  {} {} ({})", Say(language, fmt::format("compare.{}", FateName(f.fate))),
                       f.id, PhaseWord(language, f.phase));
    const bool was = f.fate != Fate::kNew;
    const bool is = f.fate == Fate::kNew || f.fate == Fate::kStayed;
    if (was) out += " " + SeverityWord(language, f.before);
    if (was && is) out += " ->";
    if (is) out += " " + SeverityWord(language, f.after);
    out += '\n';
  }
  return out;
}

nlohmann::ordered_json CompareJson(const Comparison& c) {
  Json buckets = Json::array();
  for (const BucketChange& b : c.buckets) {
    Json parts = Json::array();
    for (const PartChange& p : b.parts) {
      parts.push_back({{"name", p.name},
                       {"idle", p.idle},
                       {"before_ms", p.before_ms},
                       {"after_ms", p.after_ms}});
    }
    buckets.push_back({{"phase", PhaseName(b.phase)},
                       {"batch", OrNull(b.batch)},
                       {"steps_before", b.steps_before},
                       {"steps_after", b.steps_after},
                       {"before_ms", OrNull(b.before_ms)},
                       {"after_ms", OrNull(b.after_ms)},
                       {"change", OrNull(b.share())},
                       {"error_ms", OrNull(b.error_ms)},
                       {"verdict", VerdictName(b.verdict)},
                       {"parts", std::move(parts)}});
  }
  Json findings = Json::array();
  for (const FindingChange& f : c.findings) {
    const bool was = f.fate != Fate::kNew;
    const bool is = f.fate == Fate::kNew || f.fate == Fate::kStayed;
    findings.push_back({{"id", f.id},
                        {"phase", PhaseName(f.phase)},
                        {"fate", FateName(f.fate)},
                        {"before", was ? Json(SeverityName(f.before)) : Json(nullptr)},
                        {"after", is ? Json(SeverityName(f.after)) : Json(nullptr)},
                        {"before_saving_ms", OrNull(f.before_saving_ms)},
                        {"after_saving_ms", OrNull(f.after_saving_ms)}});
  }
  return {{"schema", "fathom.compare/1"},           {"buckets", std::move(buckets)},
          {"unmatched_before", c.unmatched_before}, {"unmatched_after", c.unmatched_after},
          {"findings", std::move(findings)},        {"worst_slowdown", c.WorstSlowdown()}};
}

}  // namespace fathom::diagnose
