#include "diagnose/report/markdown_report.h"

#include <fmt/format.h>

#include <cmath>

namespace fathom::diagnose {
namespace {

// A cell must not end its row, and names in it must not become markup.
std::string Cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '`' || c == '*' || c == '_') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string MarkdownReport(const Diagnosis& d, Language language) {
  std::string out = fmt::format("# fathom diagnose\n\n## {}\n\n", Say(language, "report.trust"));
  for (const Source& source : d.timeline->sources) {
    out += fmt::format("- {}: {}, {} events, {} dropped\n", Cell(source.path), source.format,
                       source.stats.kept, source.stats.dropped());
  }
  out += fmt::format(
      "\n## {}\n\n| phase | steps | p50 ms | p99 ms | busy | launches | "
      "communication | unexplained |\n|---|---|---|---|---|---|---|---|\n",
      Say(language, "report.step2"));
  for (const PhaseSummary& s : Summarise(d)) {
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", PhaseName(s.phase), s.counted,
                       Number(s.p50_ms), Number(s.p99_ms), Percent(s.busy_share),
                       Percent(s.launch_bound_share), Percent(s.exposed_communication_share),
                       Percent(s.unexplained_share));
  }
  out += fmt::format("\n## {}\n", Say(language, "report.step3"));
  for (const Finding& f : d.findings.findings) {
    out += fmt::format("\n### {} · {}\n\n{}", f.id, SeverityName(f.severity),
                       Cell(Say(language, f.title)));
    if (std::isfinite(f.saving_ms_per_step) && f.saving_ms_per_step > 0) {
      out += ". " + Say(language, Text{"report.saves", {{"ms", Number(f.saving_ms_per_step)}}});
    }
    out += "\n\n";
    for (const Evidence& e : f.evidence) out += "- " + Cell(Say(language, e.text)) + "\n";
    out +=
        fmt::format("\n**{}**{}\n", Say(language, "report.change"), Cell(Say(language, f.change)));
  }
  if (d.findings.findings.empty()) out += "\n" + Say(language, "report.no_findings") + "\n";
  if (!d.findings.abstained.empty()) {
    out += fmt::format("\n## {}\n\n", Say(language, "report.abstained"));
    for (const Abstention& a : d.findings.abstained) {
      out += fmt::format("- {}: {}\n", a.id, Cell(Say(language, a.why)));
    }
  }
  return out;
}

}  // namespace fathom::diagnose
