#include "diagnose/understand/server_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "diagnose/rules/rule.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

constexpr std::array kOrder = {Phase::kPrefill, Phase::kDecode, Phase::kMixed, Phase::kUnknown};

double Mean(const std::vector<double>& values) {
  return values.empty() ? ServerPhase::kAbsent
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

Phase PhaseOfRates(double prompt, double decode) {
  if (prompt > 0) return decode > 0 ? Phase::kMixed : Phase::kPrefill;
  return decode > 0 ? Phase::kDecode : Phase::kUnknown;
}

// Batches and windows of one phase, one by one.
class Collected {
 public:
  Collected(PhaseUnit unit, bool scraped) : unit_(unit), scraped_(scraped) {}

  void AddTokens(std::optional<double> fresh, std::optional<double> cached) {
    Add(new_tokens_, fresh);
    Add(cached_tokens_, cached);
  }
  void AddRates(std::optional<double> prompt, std::optional<double> decode,
                std::optional<double> running) {
    ++count_;
    Add(prompt_rates_, prompt);
    Add(decode_rates_, decode);
    Add(running_, running);
    if (decode && running && *decode > 0 && *running > 0) {
      token_ms_.push_back(*running / *decode * 1e3);
    }
  }
  void AddStep(double ms, double prompt_tokens, double sequences) {
    ++count_;
    step_ms_.push_back(ms);
    if (prompt_tokens > 0) new_tokens_.push_back(prompt_tokens);
    running_.push_back(sequences);
  }
  size_t count() const { return count_; }

  ServerPhase Summary(SourceId source, Phase phase, size_t count_of_source) const {
    return {.source = source,
            .phase = phase,
            .unit = unit_,
            .scraped = scraped_,
            .count = count_,
            .count_of_source = count_of_source,
            .new_tokens = Median(new_tokens_),
            .cached_tokens = Median(cached_tokens_),
            .prompt_tokens_per_s = Mean(prompt_rates_),
            .decode_tokens_per_s = Mean(decode_rates_),
            .running = Mean(running_),
            .step_ms = Mean(step_ms_),
            .token_ms = Median(token_ms_),
            .worst_token_ms = token_ms_.empty()
                                  ? ServerPhase::kAbsent
                                  : *std::max_element(token_ms_.begin(), token_ms_.end())};
  }

 private:
  static void Add(std::vector<double>& to, std::optional<double> value) {
    if (value) to.push_back(*value);
  }

  PhaseUnit unit_;
  bool scraped_;
  size_t count_ = 0;
  std::vector<double> new_tokens_, cached_tokens_, prompt_rates_, decode_rates_, running_, step_ms_,
      token_ms_;
};

using BySource = std::map<SourceId, std::map<Phase, Collected>>;

void AddLogs(const Timeline& timeline, BySource& sources) {
  for (const LogLine& line : timeline.log_lines) {
    const auto prompt = timeline.Value(line, LogField::kPromptTokensPerS);
    const auto decode = timeline.Value(line, LogField::kDecodeTokensPerS);
    if (const auto ms = timeline.Value(line, LogField::kStepMs)) {
      const double prompt_tokens = timeline.Value(line, LogField::kNewTokens).value_or(0);
      const double decoding = timeline.Value(line, LogField::kDecodeSequences).value_or(0);
      sources[line.source]
          .try_emplace(PhaseOfRates(prompt_tokens, decoding), PhaseUnit::kSteps, false)
          .first->second.AddStep(
              *ms, prompt_tokens,
              decoding + timeline.Value(line, LogField::kNewSequences).value_or(0));
      continue;
    }
    const bool batch = line.kind == LogKind::kPrefill || line.kind == LogKind::kDecode;
    const bool window = line.kind == LogKind::kStats && prompt && decode;
    if (!batch && !window) continue;
    const Phase phase = window                           ? PhaseOfRates(*prompt, *decode)
                        : line.kind == LogKind::kPrefill ? Phase::kPrefill
                                                         : Phase::kDecode;
    const PhaseUnit unit = window ? PhaseUnit::kWindows : PhaseUnit::kBatches;
    Collected& c = sources[line.source].try_emplace(phase, unit, false).first->second;
    c.AddTokens(timeline.Value(line, LogField::kNewTokens),
                timeline.Value(line, LogField::kCachedTokens));
    c.AddRates(prompt, decode, timeline.Value(line, LogField::kRunning));
  }
}

// vLLM's counters between scrapes. SGLang's move when a request ends: they tell nothing of when its
// tokens were computed.
void AddScrapes(const Timeline& timeline, BySource& sources) {
  struct Scrape {
    std::optional<double> prompt, generated, running;  // sums over engines
  };
  std::map<SourceId, std::map<int64_t, Scrape>> scrapes;
  const auto add = [&](std::string_view name, std::optional<double> Scrape::*field) {
    for (size_t i = 0; i < timeline.samples.size(); ++i) {
      const Series& series = timeline.series[timeline.samples.series[i]];
      if (timeline.Name(series.name) != name) continue;
      std::optional<double>& sum = scrapes[series.source][timeline.samples.t_ns[i]].*field;
      sum = sum.value_or(0) + timeline.samples.value[i];
    }
  };
  if (timeline.strings.Find("vllm:prompt_tokens_total") == 0) return;
  add("vllm:prompt_tokens_total", &Scrape::prompt);
  add("vllm:generation_tokens_total", &Scrape::generated);
  add("vllm:num_requests_running", &Scrape::running);
  for (const auto& [source, by_time] : scrapes) {
    const Scrape* before = nullptr;
    int64_t before_ns = 0;
    for (const auto& [t_ns, scrape] : by_time) {
      if (!scrape.prompt || !scrape.generated) continue;
      // A counter that falls is a server that was started again.
      if (before != nullptr && *scrape.prompt >= *before->prompt &&
          *scrape.generated >= *before->generated) {
        const double seconds = static_cast<double>(t_ns - before_ns) / 1e9;
        const double prompt = (*scrape.prompt - *before->prompt) / seconds;
        const double decode = (*scrape.generated - *before->generated) / seconds;
        sources[source]
            .try_emplace(PhaseOfRates(prompt, decode), PhaseUnit::kWindows, true)
            .first->second.AddRates(prompt, decode, scrape.running);
      }
      before = &scrape;
      before_ns = t_ns;
    }
  }
}

// Fathom counts its steps by phase: what passed between the first scrape and the last, or since the
// server's start where there is one scrape.
void AddFathomSteps(const Timeline& timeline, std::vector<ServerPhase>& phases) {
  struct Counter {
    double first = 0, last = 0;
    size_t n = 0;
    double growth() const { return n > 1 ? last - first : last; }
  };
  std::map<uint32_t, Counter> counters;  // by series
  for (size_t i = 0; i < timeline.samples.size(); ++i) {
    const uint32_t series = timeline.samples.series[i];
    const std::string_view name = timeline.Name(timeline.series[series].name);
    if (!name.starts_with("fathom:step_seconds_")) continue;
    Counter& counter = counters[series];
    if (counter.n++ == 0) counter.first = timeline.samples.value[i];
    counter.last = timeline.samples.value[i];
  }
  std::map<SourceId, std::map<Phase, std::pair<double, double>>> steps;  // count, seconds
  for (const auto& [series, counter] : counters) {
    const Series& row = timeline.series[series];
    for (const Phase phase : kOrder) {
      const std::string label = fmt::format("phase=\"{}\"", PhaseName(phase));
      if (timeline.Name(row.labels).find(label) == std::string_view::npos) continue;
      auto& [count, seconds] = steps[row.source][phase];
      if (timeline.Name(row.name) == "fathom:step_seconds_count") count += counter.growth();
      if (timeline.Name(row.name) == "fathom:step_seconds_sum") seconds += counter.growth();
    }
  }
  for (const auto& [source, by_phase] : steps) {
    double all = 0;
    for (const auto& [phase, sums] : by_phase) all += sums.first;
    for (const auto& [phase, sums] : by_phase) {
      if (sums.first <= 0) continue;
      phases.push_back({.source = source,
                        .phase = phase,
                        .unit = PhaseUnit::kSteps,
                        .scraped = true,
                        .count = static_cast<size_t>(sums.first),
                        .count_of_source = static_cast<size_t>(all),
                        .step_ms = sums.second / sums.first * 1e3});
    }
  }
}

}  // namespace

std::vector<ServerPhase> FindServerPhases(const Timeline& timeline) {
  BySource sources;
  AddLogs(timeline, sources);
  AddScrapes(timeline, sources);
  std::vector<ServerPhase> phases;
  for (const auto& [source, by_phase] : sources) {
    size_t all = 0;
    for (const auto& [phase, collected] : by_phase) all += collected.count();
    for (const Phase phase : kOrder) {
      const auto it = by_phase.find(phase);
      if (it != by_phase.end()) phases.push_back(it->second.Summary(source, phase, all));
    }
  }
  AddFathomSteps(timeline, phases);
  return phases;
}

}  // namespace fathom::diagnose
