#include "diagnose/understand/log_phases.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "diagnose/rules/rule.h"

namespace fathom::diagnose {
namespace {

struct Collected {
  bool windows = false;
  size_t lines = 0;
  std::vector<double> new_tokens, cached_tokens, prompt_rates, decode_rates, running, token_ms;
};

double Mean(const std::vector<double>& values) {
  return values.empty() ? LogPhase::kAbsent
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

// What the line is about; nothing when it does not say.
std::optional<Phase> PhaseOf(const Timeline& timeline, const LogLine& line) {
  if (line.kind == LogKind::kPrefill) return Phase::kPrefill;
  if (line.kind == LogKind::kDecode) return Phase::kDecode;
  if (line.kind != LogKind::kStats) return std::nullopt;
  const auto prompt = timeline.Value(line, LogField::kPromptTokensPerS);
  const auto decode = timeline.Value(line, LogField::kDecodeTokensPerS);
  if (!prompt || !decode) return std::nullopt;
  if (*prompt > 0) return *decode > 0 ? Phase::kMixed : Phase::kPrefill;
  return *decode > 0 ? Phase::kDecode : Phase::kUnknown;
}

}  // namespace

std::vector<LogPhase> FindLogPhases(const Timeline& timeline) {
  constexpr std::array kOrder = {Phase::kPrefill, Phase::kDecode, Phase::kMixed, Phase::kUnknown};
  std::map<std::pair<SourceId, Phase>, Collected> collected;
  std::map<SourceId, size_t> lines;
  for (const LogLine& line : timeline.log_lines) {
    const std::optional<Phase> phase = PhaseOf(timeline, line);
    if (!phase) continue;
    Collected& c = collected[{line.source, *phase}];
    const auto add = [&](LogField field, std::vector<double>& to) {
      const std::optional<double> value = timeline.Value(line, field);
      if (value) to.push_back(*value);
      return value;
    };
    ++c.lines;
    ++lines[line.source];
    c.windows = line.kind == LogKind::kStats;
    add(LogField::kNewTokens, c.new_tokens);
    add(LogField::kCachedTokens, c.cached_tokens);
    add(LogField::kPromptTokensPerS, c.prompt_rates);
    const auto rate = add(LogField::kDecodeTokensPerS, c.decode_rates);
    const auto running = add(LogField::kRunning, c.running);
    if (rate && running && *rate > 0 && *running > 0) c.token_ms.push_back(*running / *rate * 1e3);
  }
  std::vector<LogPhase> phases;
  for (const auto& [source, all] : lines) {
    for (const Phase phase : kOrder) {
      const auto it = collected.find({source, phase});
      if (it == collected.end()) continue;
      const Collected& c = it->second;
      const double worst = c.token_ms.empty()
                               ? LogPhase::kAbsent
                               : *std::max_element(c.token_ms.begin(), c.token_ms.end());
      phases.push_back({.source = source,
                        .phase = phase,
                        .windows = c.windows,
                        .lines = c.lines,
                        .lines_of_source = all,
                        .new_tokens = Median(c.new_tokens),
                        .cached_tokens = Median(c.cached_tokens),
                        .prompt_tokens_per_s = Mean(c.prompt_rates),
                        .decode_tokens_per_s = Mean(c.decode_rates),
                        .running = Mean(c.running),
                        .token_ms = Median(c.token_ms),
                        .worst_token_ms = worst});
    }
  }
  return phases;
}

}  // namespace fathom::diagnose
