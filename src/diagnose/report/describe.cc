#include "diagnose/report/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/strings.h"
#include "diagnose/rules/rule.h"

namespace fathom::diagnose {
namespace {

// The step whose wall time is the median of the phase's main bucket; kNone without one.
uint32_t MedianStep(const Diagnosis& d, Phase phase) {
  const Bucket* bucket = d.steps.Main(phase);
  if (bucket == nullptr || bucket->counted.empty()) return kNone;
  std::vector<uint32_t> order = bucket->counted;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return d.accounts[a].wall_ns < d.accounts[b].wall_ns; });
  return order[order.size() / 2];
}

std::string Word(Language language, std::string_view family, std::string_view name) {
  return Say(language, fmt::format("{}.{}", family, name));
}

}  // namespace

std::string PhaseWord(Language language, Phase phase) {
  return Word(language, "phase", PhaseName(phase));
}
std::string SeverityWord(Language language, Severity severity) {
  return Word(language, "severity", SeverityName(severity));
}
std::string ClassWord(Language language, KernelClass kind) {
  return Word(language, "class", KernelClassName(kind));
}
std::string CauseWord(Language language, GapCause cause) {
  return Word(language, "cause", GapCauseName(cause));
}

std::string Headline(const Diagnosis& d, Language language) {
  std::array<size_t, 3> by_severity{};
  const Finding* best = nullptr;
  for (const Finding& f : d.findings.findings) {
    ++by_severity[static_cast<size_t>(f.severity)];
    const bool saves = !std::isnan(f.saving_ms_per_step) && f.saving_ms_per_step > 0;
    if (saves && (best == nullptr || f.saving_ms_per_step > best->saving_ms_per_step)) best = &f;
  }
  std::vector<std::string> parts;
  if (d.findings.findings.empty()) {
    parts.push_back(Say(language, "report.no_findings"));
  } else {
    std::vector<std::string> counts;
    for (const Severity severity : {Severity::kSevere, Severity::kWarn, Severity::kInfo}) {
      const size_t n = by_severity[static_cast<size_t>(severity)];
      if (n > 0) counts.push_back(fmt::format("{} {}", n, SeverityWord(language, severity)));
    }
    parts.push_back(fmt::format("{}", fmt::join(counts, ", ")));
  }
  if (best != nullptr) {
    const std::string ms = Duration(best->saving_ms_per_step * 1e6);
    parts.push_back(Say(language, Text{"report.headline_saving",
                                       {{"id", std::string(best->id)},
                                        {"ms", ms},
                                        {"phase", PhaseWord(language, best->phase)}}}));
  }
  std::set<std::string_view> open_rules;
  for (const Abstention& a : d.findings.abstained) open_rules.insert(a.id);
  const size_t undecided = open_rules.size();
  if (undecided > 0) {
    parts.push_back(Say(language, Text{"report.headline_undecided",
                                       {{"n", std::to_string(undecided)},
                                        {"all", std::to_string(Rules().size())}}}));
  }
  return fmt::format("{}", fmt::join(parts, language == Language::kEnglish ? "; " : "；"));
}

std::string SourceSummary(const Source& source, Language language) {
  std::string line =
      Say(language, Text{"report.events", {{"n", std::to_string(source.stats.kept)}}});
  if (source.stats.dropped() > 0) {
    line += ", " +
            Say(language, Text{"report.dropped", {{"n", std::to_string(source.stats.dropped())}}});
  }
  if (source.with_stack.value_or(false)) line += ", " + Say(language, "report.stacks");
  return line;
}

std::vector<std::string> SourceNotes(const Diagnosis& d, const Source& source, Language language) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < kNumDefects; ++i) {
    const DefectCount& defect = source.stats.defects[i];
    if (defect.count == 0) continue;
    const bool placed = defect.first_offset != DefectCount::kNoOffset;
    notes.push_back(
        Say(language, Text{placed ? "report.defect" : "report.defect.unplaced",
                           {{"n", std::to_string(defect.count)},
                            {"what", Word(language, "defect", DefectName(static_cast<Defect>(i)))},
                            {"at", std::to_string(defect.first_offset)}}}));
  }
  const bool alone = d.timeline->sources.size() < 2;
  if (alone || source.clock == ClockDomain::kNone) return notes;
  if (!source.aligned) {
    notes.push_back(Say(language, "report.clock_loose"));
  } else if (source.error_ns > 0) {  // 0: it is the clock that the others are put on
    notes.push_back(
        Say(language, Text{"report.clock",
                           {{"how", Say(language, Text{source.alignment, source.alignment_args})},
                            {"error", HumanNs(source.error_ns)}}}));
  }
  return notes;
}

std::vector<std::string> DeviceLines(const Diagnosis& d, Language language) {
  std::vector<std::string> lines;
  const auto gpus = d.index->gpus();
  for (size_t i = 0; i < d.timeline->sources.size(); ++i) {
    const auto id = static_cast<SourceId>(i);
    std::vector<std::string> working;
    const std::vector<DeviceInfo>& devices = d.timeline->sources[id].devices;
    for (const DeviceInfo& device : devices) {
      const bool works = std::any_of(gpus.begin(), gpus.end(), [&](const GpuKey& gpu) {
        return gpu == GpuKey{id, device.id};
      });
      if (!works) continue;
      const auto memory = static_cast<uint64_t>(std::max<int64_t>(device.memory_bytes, 0));
      working.push_back(Say(
          language,
          Text{"report.device",
               {{"id", std::to_string(device.id)},
                {"name", device.name.empty() ? Say(language, "report.unnamed_gpu") : device.name},
                {"arch", fmt::format("{}{}{}", device.is_cuda() ? "sm" : "gfx",
                                     device.compute_major, device.compute_minor)},
                {"sms", std::to_string(device.num_sms)},
                {"memory", HumanBytes(memory)}}}));
    }
    // Samples tell how busy a GPU is, not what ran there.
    const bool traced = std::any_of(d.timeline->tracks.begin(), d.timeline->tracks.end(),
                                    [id](const Track& track) { return track.source == id; });
    if (traced && devices.size() > working.size()) {
      lines.push_back(Say(language, Text{"report.devices",
                                         {{"listed", std::to_string(devices.size())},
                                          {"used", std::to_string(working.size())}}}));
    }
    lines.insert(lines.end(), working.begin(), working.end());
    for (const GpuKey& gpu : gpus) {
      const bool listed =
          std::any_of(devices.begin(), devices.end(), [&](const DeviceInfo& device) {
            return gpu == GpuKey{id, device.id};
          });
      if (gpu.source != id || listed) continue;
      lines.push_back(
          Say(language, Text{"report.device_unlisted", {{"id", std::to_string(gpu.device)}}}));
    }
  }
  return lines;
}

std::string GpuShares(const PhaseSummary& s, Language language) {
  if (s.with_gpu == 0) return Say(language, "report.no_gpu_rows");
  return Say(language, Text{"report.gpu_shares",
                            {{"busy", Percent(s.busy_share)},
                             {"launch", Percent(s.launch_bound_share)},
                             {"comm", Percent(s.exposed_communication_share)},
                             {"unknown", Percent(s.unexplained_share)}}});
}

std::vector<std::string> StepNotes(const Diagnosis& d, Language language) {
  std::vector<std::string> lines;
  for (const PhaseSummary& s : Summarise(d)) {
    std::vector<std::string> parts;
    const size_t left_out = s.steps - s.counted;
    if (left_out > 0) {
      parts.push_back(
          Say(language, Text{"report.left_out",
                             {{"n", std::to_string(left_out)}, {"of", std::to_string(s.steps)}}}));
    }
    if (s.layers >= 2) {
      parts.push_back(Say(language, Text{"report.layers", {{"layers", std::to_string(s.layers)}}}));
    }
    if (parts.empty()) continue;
    lines.push_back(fmt::format("{}{}{}", PhaseWord(language, s.phase),
                                language == Language::kEnglish ? ": " : "：",
                                fmt::join(parts, language == Language::kEnglish ? "; " : "；")));
  }
  return lines;
}

std::vector<std::string> ServerPhaseLines(const Diagnosis& d, Language language) {
  std::vector<std::string> lines;
  std::set<SourceId> sources;
  for (const ServerPhase& p : d.server_phases) sources.insert(p.source);
  const auto number = [](double value) { return std::isnan(value) ? "?" : Number(value); };
  for (const ServerPhase& p : d.server_phases) {
    std::string_view key = "server.steps";
    if (p.unit == PhaseUnit::kWindows) {
      key = p.phase == Phase::kUnknown ? "server.windows.idle" : "server.windows";
    } else if (p.unit == PhaseUnit::kBatches) {
      key = p.phase == Phase::kPrefill ? "server.batches.prefill" : "server.batches.decode";
    }
    std::string line =
        Say(language, Text{key,
                           {{"phase", PhaseWord(language, p.phase)},
                            {"by", Say(language, p.scraped ? "server.metrics" : "server.log")},
                            {"n", std::to_string(p.count)},
                            {"of", std::to_string(p.count_of_source)},
                            {"new", number(p.new_tokens)},
                            {"cached", number(p.cached_tokens)},
                            {"prompt", number(p.prompt_tokens_per_s)},
                            {"decode", number(p.decode_tokens_per_s)},
                            {"running", number(p.running)},
                            {"step", std::isnan(p.step_ms) ? "?" : Duration(p.step_ms * 1e6)}}});
    if (p.phase != Phase::kPrefill && !std::isnan(p.token_ms)) {
      line += Say(language, Text{"server.token",
                                 {{"typical", Duration(p.token_ms * 1e6)},
                                  {"worst", Duration(p.worst_token_ms * 1e6)}}});
    }
    if (sources.size() > 1) line = d.timeline->sources[p.source].path + ": " + line;
    lines.push_back(std::move(line));
  }
  if (!lines.empty()) lines.push_back(Say(language, "server.no_steps"));
  return lines;
}

namespace {

// Of a step without GPU rows, what the engine's own spans say: "attention L3" counts as attention,
// and what no span covers as unexplained.
std::vector<std::pair<std::string, int64_t>> EngineOps(const Diagnosis& d, const Step& step,
                                                       Language language) {
  const Slices& slices = d.timeline->slices;
  std::map<std::string, int64_t> by_op;
  int64_t covered = 0;
  if (step.thread == kNone) return {};
  for (const uint32_t s : d.index->thread(step.thread)) {
    if (slices.category[s] != Category::kEngine || s == step.marker) continue;
    if (slices.start_ns[s] < step.start_ns || slices.end_ns(s) > step.end_ns) continue;
    const uint32_t parent = d.index->parent(s);
    if (parent != kNone && parent != step.marker && slices.category[parent] == Category::kEngine) {
      continue;  // its parent counts
    }
    const std::string_view name = d.timeline->SliceName(s);
    by_op[std::string(name.substr(0, name.rfind(" L")))] += slices.dur_ns[s];
    covered += slices.dur_ns[s];
  }
  std::vector<std::pair<std::string, int64_t>> parts(by_op.begin(), by_op.end());
  const int64_t rest = step.wall_ns() - covered;
  if (!parts.empty() && rest > 0) parts.emplace_back(Say(language, "report.unexplained"), rest);
  return parts;
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> TypicalStep(const Diagnosis& d, Phase phase,
                                                         Language language) {
  std::vector<std::pair<std::string, int64_t>> parts;
  const uint32_t step = MedianStep(d, phase);
  if (step == kNone) return parts;
  const auto largest_first = [](const auto& a, const auto& b) { return a.second > b.second; };
  if (d.steps.all[step].num_work == 0) {
    parts = EngineOps(d, d.steps.all[step], language);
    std::stable_sort(parts.begin(), parts.end(), largest_first);
    return parts;
  }
  const StepAccount& account = d.accounts[step];
  for (size_t i = 0; i < kNumKernelClasses; ++i) {
    if (account.busy_by_class[i] > 0) {
      parts.emplace_back(ClassWord(language, static_cast<KernelClass>(i)),
                         account.busy_by_class[i]);
    }
  }
  for (size_t i = 0; i < kNumGapCauses; ++i) {
    if (account.idle_by_cause[i] > 0) {
      parts.emplace_back(
          Say(language,
              Text{"report.idle", {{"cause", CauseWord(language, static_cast<GapCause>(i))}}}),
          account.idle_by_cause[i]);
    }
  }
  std::stable_sort(parts.begin(), parts.end(), largest_first);
  return parts;
}

std::vector<std::string> SkippedLines(const Timeline& timeline, Language language) {
  std::vector<std::string> lines;
  size_t others = 0;
  std::string example;
  for (const SkippedFile& file : timeline.skipped) {
    if (!file.why.empty()) {
      std::string why = file.why;
      std::replace(why.begin(), why.end(), '\n', ' ');
      lines.push_back(Say(language, Text{"trust.skipped.recording", {{"why", why}}}));
    } else if (others++ == 0) {
      example = file.path;
    }
  }
  if (others > 0) {
    lines.push_back(Say(
        language, Text{"trust.skipped", {{"n", std::to_string(others)}, {"example", example}}}));
  }
  return lines;
}

std::string EvidenceLine(const Evidence& evidence, Language language) {
  std::string line = Say(language, evidence.text);
  if (evidence.saving_ms_per_launch > 0) {
    line += "; " + Say(language, Text{"report.saves_launch",
                                      {{"ms", Duration(evidence.saving_ms_per_launch * 1e6)}}});
  }
  return line;
}

std::vector<std::pair<std::string, std::vector<std::string_view>>> AbstentionsByReason(
    const Findings& findings, Language language) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> groups;
  for (const Abstention& a : findings.abstained) {
    const std::string why = Say(language, a.why);
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == why; });
    if (it == groups.end()) it = groups.insert(groups.end(), {why, {}});
    it->second.push_back(a.id);
  }
  return groups;
}

std::string AddressValueText(AddressValue kind, double value) {
  switch (kind) {
    case AddressValue::kAccesses:
      return fmt::format("{:.3g}", value);
    case AddressValue::kLatencyNs:
      return Duration(value);
    case AddressValue::kBytes:
      return HumanBytes(static_cast<uint64_t>(value));
  }
  return {};
}

std::string AddressMapNote(const AddressHeatMap& map, Language language) {
  static constexpr std::string_view kWhat[] = {"html.address.accesses", "html.address.latency",
                                               "html.address.bytes"};
  std::vector<std::string> parts = {
      Say(language, kWhat[static_cast<size_t>(map.value_kind)]),
      Say(language, map.by_address ? "html.address.by_bits" : "html.address.by_pages")};
  const auto count = [&](std::string_view key, uint64_t n) {
    if (n > 0) parts.push_back(Say(language, Text{key, {{"n", std::to_string(n)}}}));
  };
  count("html.address.placed", map.placed);
  count("html.address.unplaced", map.unplaced);
  if (map.tokens_per_column > 1) {
    count("html.address.binned", static_cast<uint64_t>(map.tokens_per_column));
  }
  return fmt::format("{}", fmt::join(parts, language == Language::kEnglish ? " " : ""));
}

}  // namespace fathom::diagnose
