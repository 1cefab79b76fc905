#include "diagnose/report/markdown_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/strings.h"
#include "diagnose/report/describe.h"

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
  std::string out = fmt::format("# fathom diagnose\n\n{}\n\n## {}\n\n", Headline(d, language),
                                Say(language, "report.trust"));
  for (const Source& source : d.timeline->sources) {
    out += fmt::format("- {}: {}, {}\n", Cell(source.path), source.format,
                       Cell(SourceSummary(source, language)));
    for (const std::string& note : SourceNotes(d, source, language)) {
      out += fmt::format("  - {}\n", Cell(note));
    }
  }
  out += fmt::format("\n## {}\n\n", Say(language, "report.step1"));
  for (const std::string& line : DeviceLines(d, language)) out += "- " + Cell(line) + "\n";
  for (const Observation& o : d.observations) {
    const std::string text = Cell(Say(language, o.text));
    out += o.alarming ? "- **" + text + "**\n" : "- " + text + "\n";
  }
  const std::vector<PhaseSummary> phases = Summarise(d);
  if (d.observations.empty() && d.index->gpus().empty()) {
    out += "- " + Say(language, "report.nothing_seen") + "\n";
  }
  out += fmt::format("\n## {}\n\n", Say(language, "report.step2"));
  const std::vector<std::string> by_log = ServerPhaseLines(d, language);
  if (phases.empty() && by_log.empty()) {
    out += Say(language, "report.no_steps") + "\n";
  } else if (!phases.empty()) {
    out += fmt::format("| {} | {} | p50 ms | p99 ms | GPU | {} |\n|---|---:|---:|---:|---|---|\n",
                       Say(language, "report.phase"), Say(language, "report.steps"),
                       Say(language, "report.typical"));
  }
  for (const PhaseSummary& s : phases) {
    std::string typical;
    for (const auto& [part, ns] : TypicalStep(d, s.phase, language)) {
      if (!typical.empty()) typical += ", ";
      typical += part + " " + HumanNs(ns);
    }
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", PhaseWord(language, s.phase), s.counted,
                       Number(s.p50_ms), Number(s.p99_ms), GpuShares(s, language), typical);
  }
  std::vector<std::string> notes = StepNotes(d, language);
  notes.insert(notes.end(), by_log.begin(), by_log.end());
  if (!phases.empty() && !notes.empty()) out += "\n";
  for (const std::string& note : notes) out += "- " + Cell(note) + "\n";
  out += fmt::format("\n## {}\n", Say(language, "report.step3"));
  for (const Finding& f : d.findings.findings) {
    out += fmt::format("\n### {} · {}\n\n{}", f.id, SeverityWord(language, f.severity),
                       Cell(Say(language, f.title)));
    if (std::isfinite(f.saving_ms_per_step) && f.saving_ms_per_step > 0) {
      out += ". " +
             Say(language, Text{"report.saves", {{"ms", Duration(f.saving_ms_per_step * 1e6)}}});
    }
    out += "\n\n";
    for (const Evidence& e : f.evidence) out += "- " + Cell(EvidenceLine(e, language)) + "\n";
    // Bold ends behind a letter, or it is no bold: the label's space goes outside.
    out += fmt::format("\n**{}** {}\n\n{}{}; {}{}\n", Trim(Say(language, "report.change")),
                       Cell(Say(language, f.change)), Say(language, "report.risk"),
                       Cell(Say(language, f.risk)), Say(language, "report.undo"),
                       Cell(Say(language, f.undo)));
  }
  if (d.findings.findings.empty()) out += "\n" + Say(language, "report.no_findings") + "\n";
  if (!d.recommendations.empty()) {
    out += fmt::format("\n## {}\n\n", Say(language, "report.recommendations"));
    for (const Recommendation& r : d.recommendations) {
      out += fmt::format("- {}: {}. {}{}\n", r.id, Cell(Say(language, r.change)),
                         Say(language, "report.because"), Cell(Say(language, r.why)));
    }
  }
  if (!d.findings.abstained.empty()) {
    out += fmt::format("\n## {}\n\n", Say(language, "report.abstained"));
    for (const auto& [why, ids] : AbstentionsByReason(d.findings, language)) {
      out += fmt::format("- {}: {}\n", Cell(why), fmt::join(ids, ", "));
    }
  }
  if (!d.findings.clean.empty()) {
    out += fmt::format("\n## {}\n\n{}\n", Say(language, "report.clean"),
                       fmt::join(d.findings.clean, ", "));
  }
  return out;
}

}  // namespace fathom::diagnose
