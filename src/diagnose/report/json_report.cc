#include "diagnose/report/json_report.h"

#include <algorithm>
#include <cmath>

#include "diagnose/report/describe.h"
#include "diagnose/understand/tail.h"

namespace fathom::diagnose {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN: what is not known is null.
Json OrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json InputOf(const Source& source) {
  Json input = {{"path", source.path},
                {"format", source.format},
                {"events", source.stats.kept},
                {"dropped", source.stats.dropped()}};
  Json defects = Json::array();
  for (size_t i = 0; i < kNumDefects; ++i) {
    const DefectCount& defect = source.stats.defects[i];
    if (defect.count == 0) continue;
    defects.push_back({{"id", DefectName(static_cast<Defect>(i))},
                       {"count", defect.count},
                       {"first_offset", defect.first_offset == DefectCount::kNoOffset
                                            ? Json(nullptr)
                                            : Json(defect.first_offset)}});
  }
  input["defects"] = std::move(defects);
  // Whether its times may be joined with the others', and how finely.
  input["clock"] = {{"aligned", source.aligned},
                    {"error_us", static_cast<double>(source.error_ns) / 1e3},
                    {"offset_us", static_cast<double>(source.offset_ns) / 1e3}};
  return input;
}

Json ExampleOf(const Diagnosis& d, uint32_t slice) {
  const Slices& slices = d.timeline->slices;
  return {{"name", d.timeline->SliceName(slice)},
          {"start_us", static_cast<double>(slices.start_ns[slice]) / 1e3},
          {"dur_us", static_cast<double>(slices.dur_ns[slice]) / 1e3},
          {"category", CategoryName(slices.category[slice])}};
}

Json FindingOf(const Diagnosis& d, const Finding& f, Language language) {
  Json finding = {{"id", f.id},
                  {"phase", PhaseName(f.phase)},
                  {"severity", SeverityName(f.severity)},
                  {"confidence", f.confidence},
                  {"title", Say(language, f.title)}};
  Json evidence = Json::array();
  for (const Evidence& e : f.evidence) {
    Json item = {{"text", EvidenceLine(e, language)}};
    if (!e.unit.empty()) {
      item["value"] = OrNull(e.value);
      item["unit"] = e.unit;
    }
    if (std::isfinite(e.saving_ms_per_launch)) {
      item["saving_ms_per_launch"] = e.saving_ms_per_launch;
    }
    if (e.slice != kNone) item["example"] = ExampleOf(d, e.slice);
    evidence.push_back(std::move(item));
  }
  finding["evidence"] = std::move(evidence);
  finding["saving_ms_per_step"] = OrNull(f.saving_ms_per_step);
  Json limits = Json::array();
  for (const UsedThreshold& t : f.thresholds) {
    limits.push_back({{"name", t.name},
                      {"value", t.value},
                      {"default", t.default_value},
                      {"unit", LimitPhrase(language, t.unit)},
                      {"source", LimitPhrase(language, t.source)},
                      {"counter_example", LimitPhrase(language, t.counter_example)}});
  }
  // The one that decided, and all that were looked at.
  finding["threshold"] = limits.empty() ? Json(nullptr) : limits.front();
  finding["thresholds"] = std::move(limits);
  finding["action"] = {{"change", Say(language, f.change)},
                       {"risk", Say(language, f.risk)},
                       {"undo", Say(language, f.undo)}};
  return finding;
}

Json StepOf(const Diagnosis& d, uint32_t number) {
  const Step& step = d.steps.all[number];
  const StepAccount& account = d.accounts[number];
  Json busy = Json::object();
  for (size_t i = 0; i < kNumKernelClasses; ++i) {
    if (account.busy_by_class[i] > 0) {
      busy[std::string(KernelClassName(static_cast<KernelClass>(i)))] =
          static_cast<double>(account.busy_by_class[i]) / 1e6;
    }
  }
  Json idle = Json::object();
  for (size_t i = 0; i < kNumGapCauses; ++i) {
    if (account.idle_by_cause[i] > 0) {
      idle[std::string(GapCauseName(static_cast<GapCause>(i)))] =
          static_cast<double>(account.idle_by_cause[i]) / 1e6;
    }
  }
  return {{"phase", PhaseName(step.phase)},
          {"start_us", static_cast<double>(step.start_ns) / 1e3},
          {"wall_ms", static_cast<double>(account.wall_ns) / 1e6},
          {"busy_ms", static_cast<double>(account.busy_ns) / 1e6},
          {"warmup", step.warmup},
          {"graph", step.graph},
          {"batch", OrNull(step.batch)},
          {"prompt_tokens", OrNull(step.prompt_tokens)},
          {"kernels", account.num_kernels},
          {"launches", account.num_launches},
          {"busy_by_class_ms", std::move(busy)},
          {"idle_by_cause_ms", std::move(idle)}};
}

Json TailOf(const Tail& tail) {
  Json parts = Json::array();
  for (const TailPart& part : tail.parts) {
    const std::string what = part.busy ? std::string(KernelClassName(*part.busy))
                                       : "idle:" + std::string(GapCauseName(*part.idle));
    parts.push_back({{"what", what}, {"ms", static_cast<double>(part.excess_ns) / 1e6}});
  }
  return {{"phase", PhaseName(tail.phase)},
          {"typical_step", tail.typical},
          {"slow_step", tail.slow},
          {"of", tail.of},
          {"excess_ms", static_cast<double>(tail.excess_ns) / 1e6},
          {"unexplained_ms", static_cast<double>(tail.unexplained_ns) / 1e6},
          {"parts", std::move(parts)}};
}

}  // namespace

Json JsonReport(const Diagnosis& d, Language language) {
  Json report = {{"schema", "fathom.report/1"}};
  Json inputs = Json::array();
  double clock_error_us = 0;
  Json trust = Json::array();
  for (const Source& source : d.timeline->sources) {
    inputs.push_back(InputOf(source));
    clock_error_us = std::max(clock_error_us, static_cast<double>(source.error_ns) / 1e3);
    if (source.with_stack.value_or(false)) {
      trust.push_back({{"id", "with-stack"}, {"detail", Say(language, "trust.with_stack")}});
    }
    if (source.stats.dropped() > 0) {
      trust.push_back({{"id", "dropped"},
                       {"detail", Say(language, Text{"trust.dropped",
                                                     {{"n", std::to_string(source.stats.dropped())},
                                                      {"path", source.path}}})}});
    }
  }
  for (const std::string& line : SkippedLines(*d.timeline, language)) {
    trust.push_back({{"id", "skipped"}, {"detail", line}});
  }
  report["inputs"] = std::move(inputs);
  report["clock_error_us"] = clock_error_us;
  report["trust"] = std::move(trust);
  Json facts = Json::array();
  for (const Observation& o : d.observations) {
    facts.push_back({{"id", o.id},
                     {"text", Say(language, o.text)},
                     {"value", OrNull(o.value)},
                     {"unit", o.unit},
                     {"alarming", o.alarming}});
  }
  report["facts"] = std::move(facts);
  Json phases = Json::object();
  for (const PhaseSummary& s : Summarise(d)) {
    phases[std::string(PhaseName(s.phase))] = {
        {"steps", s.steps},
        {"counted", s.counted},
        {"with_gpu", s.with_gpu},
        {"p50_ms", OrNull(s.p50_ms)},
        {"p99_ms", OrNull(s.p99_ms)},
        {"busy_pct", OrNull(s.busy_share * 100)},
        {"launch_bound_pct", OrNull(s.launch_bound_share * 100)},
        {"exposed_communication_pct", OrNull(s.exposed_communication_share * 100)},
        {"unexplained_pct", OrNull(s.unexplained_share * 100)},
        {"layers", s.layers}};
  }
  report["phases"] = std::move(phases);
  static constexpr std::string_view kUnits[] = {"batches", "windows", "steps"};
  Json server_phases = Json::array();
  for (const ServerPhase& p : d.server_phases) {
    server_phases.push_back({{"path", d.timeline->sources[p.source].path},
                             {"phase", p.phase == Phase::kUnknown ? "idle" : PhaseName(p.phase)},
                             {"from", p.scraped ? "metrics" : "log"},
                             {"unit", kUnits[static_cast<size_t>(p.unit)]},
                             {"count", p.count},
                             {"new_tokens", OrNull(p.new_tokens)},
                             {"cached_tokens", OrNull(p.cached_tokens)},
                             {"prompt_tokens_per_s", OrNull(p.prompt_tokens_per_s)},
                             {"decode_tokens_per_s", OrNull(p.decode_tokens_per_s)},
                             {"running", OrNull(p.running)},
                             {"step_ms", OrNull(p.step_ms)},
                             {"token_ms", OrNull(p.token_ms)},
                             {"worst_token_ms", OrNull(p.worst_token_ms)}});
  }
  report["server_phases"] = std::move(server_phases);
  Json tails = Json::array();
  for (const Tail& tail : FindTails(d.steps, d.accounts)) tails.push_back(TailOf(tail));
  report["tails"] = std::move(tails);
  Json findings = Json::array();
  Json recommendations = Json::array();
  for (const Finding& f : d.findings.findings) {
    findings.push_back(FindingOf(d, f, language));
    recommendations.push_back({{"id", f.id},
                               {"finding", f.id},
                               {"change", Say(language, f.change)},
                               {"why", Say(language, f.title)},
                               {"saving_ms_per_step", OrNull(f.saving_ms_per_step)}});
  }
  for (const Recommendation& r : d.recommendations) {
    recommendations.push_back({{"id", r.id},
                               {"finding", nullptr},
                               {"change", Say(language, r.change)},
                               {"why", Say(language, r.why)},
                               {"saving_ms_per_step", nullptr}});
  }
  report["findings"] = std::move(findings);
  report["recommendations"] = std::move(recommendations);
  Json abstained = Json::array();
  for (const Abstention& a : d.findings.abstained) {
    abstained.push_back({{"id", a.id}, {"why", Say(language, a.why)}});
  }
  report["abstained"] = std::move(abstained);
  report["clean"] = d.findings.clean;
  Json steps = Json::array();
  for (uint32_t i = 0; i < d.steps.all.size(); ++i) steps.push_back(StepOf(d, i));
  report["steps"] = std::move(steps);
  return report;
}

}  // namespace fathom::diagnose
