#include "diagnose/report/text_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "diagnose/report/describe.h"
#include "diagnose/understand/tail.h"

namespace fathom::diagnose {
namespace {

// Parts of the typical step that a line shows.
constexpr size_t kShownParts = 6;

class Writer {
 public:
  Writer(const Diagnosis& d, Language language, const TextStyle& style)
      : d_(d), language_(language), style_(style) {}

  std::string Run() {
    Trust();
    Machine();
    Phases();
    Causes();
    Undecided();
    return std::move(out_);
  }

 private:
  void Line(std::string_view text) {
    out_ += text;
    out_ += '\n';
  }
  void Heading(std::string_view key) {
    Line(fmt::format("{}{}{}{}", out_.empty() ? "" : "\n", style_.bold, Say(language_, key),
                     style_.reset));
  }

  void Trust() {
    Heading("report.trust");
    for (const Source& source : d_.timeline->sources) {
      Line(fmt::format("  {}  {}  {}", source.path, source.format,
                       SourceSummary(source, language_)));
      for (const std::string& note : SourceNotes(d_, source, language_)) Line("    " + note);
    }
    for (const std::string& line : SkippedLines(*d_.timeline, language_)) Line("  " + line);
    if (d_.steps.num_captures > 0) {
      Line("  " +
           Say(language_, Text{"report.captures", {{"n", std::to_string(d_.steps.num_captures)}}}));
    }
  }

  void Machine() {
    Heading("report.step1");
    const size_t before = out_.size();
    for (const std::string& line : DeviceLines(d_, language_)) Line("  " + line);
    for (const PhaseSummary& s : Summarise(d_)) {
      Line(fmt::format("  {:8} {}", PhaseWord(language_, s.phase), GpuShares(s, language_)));
    }
    for (const Observation& o : d_.observations) {
      Line(fmt::format("  {}{}{}", o.alarming ? style_.yellow : "", Say(language_, o.text),
                       o.alarming ? style_.reset : ""));
    }
    if (out_.size() == before) Line("  " + Say(language_, "report.nothing_seen"));
  }

  void Phases() {
    Heading("report.step2");
    const std::vector<PhaseSummary> phases = Summarise(d_);
    if (phases.empty()) {
      Line("  " + Say(language_, "report.no_steps"));
      return;
    }
    Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", Say(language_, "report.phase"),
                     Say(language_, "report.steps"), "p50 ms", "p99 ms",
                     Say(language_, "report.typical")));
    for (const PhaseSummary& s : phases) {
      Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", PhaseWord(language_, s.phase), s.counted,
                       Number(s.p50_ms), Number(s.p99_ms), Typical(s)));
    }
    for (const Tail& tail : FindTails(d_.steps, d_.accounts)) {
      // Below a twentieth the slow step is as good as the typical one.
      if (tail.excess_ns * 20 >= d_.accounts[tail.typical].wall_ns) Line("  " + Slowest(tail));
    }
  }

  // "decode: its p99 step takes 4.1 ms more than the median one (idle: sync-call +3.9 ms, ...)".
  std::string Slowest(const Tail& tail) const {
    std::string parts;
    int64_t rest = tail.excess_ns - tail.unexplained_ns;
    size_t shown = 0;
    for (const TailPart& part : tail.parts) {
      // What makes up less than a twentieth is summed up.
      if (part.excess_ns * 20 < tail.excess_ns || shown == kShownParts) break;
      const std::string what =
          part.busy
              ? ClassWord(language_, *part.busy)
              : Say(language_, Text{"report.idle", {{"cause", CauseWord(language_, *part.idle)}}});
      parts += fmt::format("{} {}, ", what, Duration(static_cast<double>(part.excess_ns)));
      rest -= part.excess_ns;
      ++shown;
    }
    return Say(language_,
               Text{"report.tail",
                    {{"phase", PhaseWord(language_, tail.phase)},
                     {"ms", Duration(static_cast<double>(tail.excess_ns))},
                     {"of", std::to_string(tail.of)},
                     {"parts", parts},
                     {"rest", Duration(static_cast<double>(rest))},
                     {"unexplained", Duration(static_cast<double>(tail.unexplained_ns))}}});
  }

  // "gemm 410 us, copy 166 us, idle: launch-bound 3.2 ms".
  std::string Typical(const PhaseSummary& s) const {
    const auto parts = TypicalStep(d_, s.phase, language_);
    if (parts.empty()) return Say(language_, "report.no_gpu_rows");
    std::string text;
    for (size_t i = 0; i < std::min(parts.size(), kShownParts); ++i) {
      text += fmt::format("{}{} {}", i ? ", " : "", parts[i].first, HumanNs(parts[i].second));
    }
    return text;
  }

  void Causes() {
    Heading("report.step3");
    if (d_.findings.findings.empty()) Line("  " + Say(language_, "report.no_findings"));
    for (const Finding& f : d_.findings.findings) {
      const std::string_view colour = f.severity == Severity::kSevere ? style_.red
                                      : f.severity == Severity::kWarn ? style_.yellow
                                                                      : style_.dim;
      Line(fmt::format("  {}{:6}{} {}{}{}: {}", colour, SeverityWord(language_, f.severity),
                       style_.reset, style_.bold, f.id, style_.reset, Say(language_, f.title)));
      std::string note;
      if (!std::isnan(f.saving_ms_per_step) && f.saving_ms_per_step > 0) {
        note =
            Say(language_, Text{"report.saves", {{"ms", Duration(f.saving_ms_per_step * 1e6)}}}) +
            ", ";
      }
      note += Say(language_,
                  Text{"report.confidence", {{"value", fmt::format("{:.2f}", f.confidence)}}});
      Line("         " + note);
      for (const Evidence& e : f.evidence) Line("         - " + EvidenceLine(e, language_));
      Line("         " + Say(language_, "report.change") + Say(language_, f.change));
      Line("         " + Say(language_, "report.risk") + Say(language_, f.risk) + "; " +
           Say(language_, "report.undo") + Say(language_, f.undo));
    }
    if (!d_.recommendations.empty()) {
      Heading("report.recommendations");
      for (const Recommendation& r : d_.recommendations) {
        Line(fmt::format("  {}: {}", r.id, Say(language_, r.change)));
        Line("         " + Say(language_, "report.because") + Say(language_, r.why));
      }
    }
  }

  void Undecided() {
    if (!d_.findings.abstained.empty()) {
      Heading("report.abstained");
      for (const auto& [why, ids] : AbstentionsByReason(d_.findings, language_)) {
        Line(fmt::format("  {}: {}{}{}", why, style_.dim, fmt::join(ids, ", "), style_.reset));
      }
    }
    if (!d_.findings.clean.empty()) {
      Heading("report.clean");
      Line(fmt::format("  {}", fmt::join(d_.findings.clean, ", ")));
    }
    Line("");
    Line(fmt::format("{}{}{}", style_.dim, Say(language_, "report.explain"), style_.reset));
  }

  const Diagnosis& d_;
  Language language_;
  const TextStyle& style_;
  std::string out_;
};

}  // namespace

std::string TextReport(const Diagnosis& diagnosis, Language language, const TextStyle& style) {
  return Writer(diagnosis, language, style).Run();
}

}  // namespace fathom::diagnose
