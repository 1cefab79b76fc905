#include "diagnose/report/text_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace fathom::diagnose {
namespace {

class Writer {
 public:
  Writer(const Diagnosis& d, Language language, const TextStyle& style)
      : d_(d), language_(language), style_(style) {}

  std::string Run() {
    Trust();
    Machine();
    Phases();
    Causes();
    return std::move(out_);
  }

 private:
  void Line(std::string_view text) {
    out_ += text;
    out_ += '\n';
  }
  void Heading(std::string_view key) {
    Line(fmt::format("\n{}{}{}", style_.bold, Say(language_, key), style_.reset));
  }

  void Trust() {
    Line(fmt::format("{}{}{}", style_.bold, Say(language_, "report.trust"), style_.reset));
    for (const Source& source : d_.timeline->sources) {
      std::string line =
          fmt::format("  {}  {}  {} events", source.path, source.format, source.stats.kept);
      if (source.stats.dropped() > 0) line += fmt::format(", {} dropped", source.stats.dropped());
      if (source.with_stack.value_or(false)) line += ", Python stacks recorded: CPU times inflated";
      for (size_t i = 0; i < kNumDefects; ++i) {
        const DefectCount& defect = source.stats.defects[i];
        if (defect.count == 0) continue;
        line += fmt::format("\n    {} {} (first at byte {})", defect.count,
                            DefectName(static_cast<Defect>(i)), defect.first_offset);
      }
      Line(line);
    }
  }

  void Machine() {
    Heading("report.step1");
    for (const Source& source : d_.timeline->sources) {
      for (const DeviceInfo& device : source.devices) {
        Line(fmt::format(
            "  GPU {}: {}, sm{}{}, {} SMs, {}", device.id, device.name, device.compute_major,
            device.compute_minor, device.num_sms,
            HumanBytes(static_cast<uint64_t>(std::max<int64_t>(device.memory_bytes, 0)))));
      }
    }
    for (const PhaseSummary& s : Summarise(d_)) {
      Line(
          fmt::format("  {:8} GPU busy {}, waiting for launches {}, exposed communication {}, "
                      "unexplained idle {}",
                      PhaseName(s.phase), Percent(s.busy_share), Percent(s.launch_bound_share),
                      Percent(s.exposed_communication_share), Percent(s.unexplained_share)));
    }
  }

  void Phases() {
    Heading("report.step2");
    Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", "phase", "steps", "p50 ms", "p99 ms",
                     "where a typical step went"));
    for (const PhaseSummary& s : Summarise(d_)) {
      Line(fmt::format("  {:8} {:>6} {:>9} {:>9}   {}", PhaseName(s.phase), s.counted,
                       Number(s.p50_ms), Number(s.p99_ms), Typical(s.phase)));
    }
  }

  // "gemm 410 us, copy 166 us, ... | idle: launch-bound 3.2 ms": the largest parts of the step
  // whose wall time is the median.
  std::string Typical(Phase phase) const {
    const Bucket* bucket = d_.steps.Main(phase);
    if (bucket == nullptr || bucket->counted.empty()) return "";
    std::vector<uint32_t> order = bucket->counted;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return d_.accounts[a].wall_ns < d_.accounts[b].wall_ns;
    });
    const StepAccount& account = d_.accounts[order[order.size() / 2]];
    std::vector<std::pair<int64_t, std::string>> parts;
    for (size_t i = 0; i < kNumKernelClasses; ++i) {
      if (account.busy_by_class[i] > 0) {
        parts.emplace_back(account.busy_by_class[i],
                           std::string(KernelClassName(static_cast<KernelClass>(i))));
      }
    }
    for (size_t i = 0; i < kNumGapCauses; ++i) {
      if (account.idle_by_cause[i] > 0) {
        parts.emplace_back(account.idle_by_cause[i],
                           fmt::format("idle:{}", GapCauseName(static_cast<GapCause>(i))));
      }
    }
    std::sort(parts.rbegin(), parts.rend());
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(parts.size(), 6); ++i) {
      text += fmt::format("{}{} {}", i ? ", " : "", parts[i].second, HumanNs(parts[i].first));
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
      Line(fmt::format("  {}{:6}{} {}{}{}: {}", colour, SeverityName(f.severity), style_.reset,
                       style_.bold, f.id, style_.reset, Say(language_, f.title)));
      std::string note;
      if (!std::isnan(f.saving_ms_per_step) && f.saving_ms_per_step > 0) {
        note = Say(language_, Text{"report.saves", {{"ms", Number(f.saving_ms_per_step)}}}) + ", ";
      }
      note += Say(language_,
                  Text{"report.confidence", {{"value", fmt::format("{:.2f}", f.confidence)}}});
      Line("         " + note);
      for (const Evidence& e : f.evidence) Line("         - " + Say(language_, e.text));
      Line("         " + Say(language_, "report.change") + Say(language_, f.change));
      Line("         " + Say(language_, "report.risk") + Say(language_, f.risk) + "; " +
           Say(language_, "report.undo") + Say(language_, f.undo));
    }
    if (!d_.findings.abstained.empty()) {
      Heading("report.abstained");
      for (const Abstention& a : d_.findings.abstained) {
        Line(fmt::format("  {}: {}", a.id, Say(language_, a.why)));
      }
    }
    if (!d_.findings.clean.empty()) {
      Heading("report.clean");
      Line(fmt::format("  {}", fmt::join(d_.findings.clean, ", ")));
    }
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
