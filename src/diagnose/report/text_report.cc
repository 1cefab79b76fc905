#include "diagnose/report/text_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "diagnose/report/describe.h"
#include "diagnose/understand/tail.h"

namespace fathom::diagnose {
namespace {

// Parts of the typical step that a line shows.
constexpr size_t kShownParts = 6;
// Where the last column of the phase table begins.
constexpr size_t kTypicalColumn = 40;
constexpr size_t kDetailIndent = 9;  // of a finding's evidence

// Ideographs and their like: a line may end before them, but not before a closing mark.
bool StartsLine(utf8proc_int32_t c) {
  static constexpr std::u32string_view kClosing =
      U"\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f\uff09\u300d";
  return utf8proc_charwidth(c) == 2 && kClosing.find(static_cast<char32_t>(c)) == kClosing.npos;
}

// Whether the space at `at` stands between a number and its unit.
bool BindsToUnit(std::string_view text, size_t at) {
  static constexpr std::string_view kUnits[] = {"ns", "us",  "ms",  "s",    "B",      "KiB",
                                                "MB", "MiB", "GiB", "GB/s", "TFLOP/s"};
  if (at == 0 || text[at - 1] < '0' || text[at - 1] > '9') return false;
  const std::string_view rest = text.substr(at + 1);
  const std::string_view word = rest.substr(0, rest.find_first_of(" ,;)"));
  return std::find(std::begin(kUnits), std::end(kUnits), word) != std::end(kUnits);
}

class Writer {
 public:
  Writer(const Diagnosis& d, Language language, const TextStyle& style)
      : d_(d), language_(language), style_(style) {}

  std::string Run() {
    Line(fmt::format("{}{}{}", style_.bold, Headline(d_, language_), style_.reset), 0);
    Trust();
    Machine();
    Phases();
    Causes();
    Undecided();
    return std::move(out_);
  }

 private:
  // Continuation lines begin `hang` cells to the right of the text itself.
  void Line(std::string_view text, size_t hang = 2) {
    const size_t first = std::min(text.find_first_not_of(' '), text.size());
    out_ +=
        style_.columns == 0 ? std::string(text) : BreakLines(text, style_.columns, first + hang);
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
    const std::vector<std::string> by_log = ServerPhaseLines(d_, language_);
    if (phases.empty()) {
      if (by_log.empty()) Line("  " + Say(language_, "report.no_steps"));
      for (const std::string& line : by_log) Line("  " + line);
      return;
    }
    Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", Say(language_, "report.phase"),
                     Say(language_, "report.steps"), "p50 ms", "p99 ms",
                     Say(language_, "report.typical")));
    for (const PhaseSummary& s : phases) {
      Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", PhaseWord(language_, s.phase), s.counted,
                       Number(s.p50_ms), Number(s.p99_ms), Typical(s)),
           kTypicalColumn - 2);
    }
    for (const std::string& line : StepNotes(d_, language_)) Line("  " + line);
    for (const std::string& line : by_log) Line("  " + line);
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
                     {"which", Say(language_, tail.of < kMinPercentileSteps ? "report.slowest"
                                                                            : "report.p99")},
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
                       style_.reset, style_.bold, f.id, style_.reset, Say(language_, f.title)),
           kDetailIndent - 2);
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
    Line(fmt::format("{}{}{}", style_.dim, Say(language_, "report.explain"), style_.reset), 0);
  }

  const Diagnosis& d_;
  Language language_;
  const TextStyle& style_;
  std::string out_;
};

}  // namespace

std::string BreakLines(std::string_view text, size_t columns, size_t indent) {
  indent = std::min(indent, columns / 2);
  std::string out;
  size_t begin = 0;      // of the line, in `text`
  size_t breakable = 0;  // the line may end before this byte; 0: nowhere yet
  size_t used = 0;       // cells
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\033') {
      const size_t end = text.find('m', at);
      at = end == text.npos ? text.size() : end + 1;
      continue;
    }
    utf8proc_int32_t c = 0;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
    const auto size = std::max<utf8proc_ssize_t>(
        1, utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &c));
    const bool leading = text.find_first_not_of(" -", begin) >= at;  // a bullet keeps its text
    const bool between = c == ' ' ? !BindsToUnit(text, at) : StartsLine(c);
    if (between && !leading) breakable = at;
    const auto cells = static_cast<size_t>(std::max(0, utf8proc_charwidth(c)));
    if (used + cells > columns && breakable > begin) {
      out.append(text.substr(begin, breakable - begin)).append("\n").append(indent, ' ');
      begin = breakable + (text[breakable] == ' ' ? 1 : 0);
      at = begin;
      used = indent;
      breakable = begin;
      continue;
    }
    used += cells;
    at += static_cast<size_t>(size);
  }
  return out.append(text.substr(begin));
}

std::string TextReport(const Diagnosis& diagnosis, Language language, const TextStyle& style) {
  return Writer(diagnosis, language, style).Run();
}

}  // namespace fathom::diagnose
