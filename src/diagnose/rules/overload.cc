// Whether a server is asked for more than it serves: burn rates of latency objectives, requests
// that wait for cache, preemptions that increase.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/rules/families.h"
#include "diagnose/understand/histograms.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

// Readings further apart do not show what happened in between.
constexpr int64_t kLongestGapNs = 60'000'000'000;

// Fewer readings with a preemption are a burst, whatever the limit.
constexpr int kLeastReadings = 3;

int64_t Ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

// --- burn rates ---

// Observations of a window against an objective. Where the objective lies inside a bucket, that
// bucket's may have missed it or not.
struct Missed {
  double total = 0;
  double at_least = 0;
  double at_most = 0;
  double share() const { return total > 0 ? at_least / total : 0; }
};

Missed MissedIn(const std::vector<std::pair<double, double>>& counts, double objective_s) {
  Missed missed{.total = counts.back().second};
  double below = 0;
  for (const auto& [bound, count] : counts) {
    if (bound >= objective_s) {
      missed.at_least = missed.total - count;
      missed.at_most = missed.total - (bound == objective_s ? count : below);
      break;
    }
    below = count;
  }
  return missed;
}

struct Burn {
  Missed fast, slow;
  int64_t fast_ns = 0, slow_ns = 0;  // the windows' real lengths
  int64_t ago_ns = 0;                // from their end to the recording's
  HistogramQuantile p99;             // of the fast window
  double rate = 0;                   // of the slower burning window
};

struct Burns {
  std::optional<Burn> worst;
  std::optional<Burn> at_end;  // of the windows that end with the recording
};

// The moments of scrapes [first, last], which go on from each other: both windows end there, and
// the one that burns slower decides. What is shorter than the slow window is its own. A window that
// the distance of the scrapes makes longer than twice its length is another one: not judged.
void AddBurns(const LatencyHistogram& h, size_t first, size_t last, double objective_s,
              const Thresholds& limits, Burns& burns) {
  const int64_t fast = Ns(limits["overload.fast_window_s"]);
  const int64_t slow = std::min(Ns(limits["overload.slow_window_s"]), h.t_ns[last] - h.t_ns[first]);
  const auto fits = [](int64_t found, int64_t window) {
    return found >= window && found <= 2 * window;
  };
  size_t fast_begin = first;  // the last scrape that is a whole window away
  size_t slow_begin = first;
  for (size_t end = first + 1; end <= last; ++end) {
    while (fast_begin + 1 < end && h.t_ns[end] - h.t_ns[fast_begin + 1] >= fast) ++fast_begin;
    while (slow_begin + 1 < end && h.t_ns[end] - h.t_ns[slow_begin + 1] >= slow) ++slow_begin;
    Burn burn{.fast_ns = h.t_ns[end] - h.t_ns[fast_begin],
              .slow_ns = h.t_ns[end] - h.t_ns[slow_begin],
              .ago_ns = h.t_ns.back() - h.t_ns[end]};
    if (!fits(burn.fast_ns, fast) || !fits(burn.slow_ns, slow)) continue;
    const auto counts = h.Between(fast_begin, end);
    burn.fast = MissedIn(counts, objective_s);
    if (burn.fast.total < limits["overload.min_requests"]) continue;
    burn.slow = MissedIn(h.Between(slow_begin, end), objective_s);
    burn.p99 = QuantileOf(counts, 0.99);
    burn.rate = std::min(burn.fast.share(), burn.slow.share()) / (1 - limits["overload.objective"]);
    if (!burns.worst || burn.rate > burns.worst->rate) burns.worst = burn;
    if (burn.ago_ns == 0) burns.at_end = burn;
  }
}

// No worst moment when no fast window has enough observations.
Burns BurnsOf(const LatencyHistogram& h, double objective_s, const Thresholds& limits) {
  Burns burns;
  for (size_t first = 0; first < h.size();) {
    size_t last = first;
    while (last + 1 < h.size() && !h.begins[last + 1]) ++last;
    AddBurns(h, first, last, objective_s, limits, burns);
    first = last + 1;
  }
  return burns;
}

std::string BucketOf(const HistogramQuantile& q) {
  if (std::isinf(q.up_to)) return "> " + Duration(q.above * 1e9);
  return fmt::format("{} .. {} (+- {})", Duration(q.above * 1e9), Duration(q.up_to * 1e9),
                     Duration((q.up_to - q.above) / 2 * 1e9));
}

std::string CountOf(const Missed& missed) {
  return missed.at_least == missed.at_most
             ? Number(missed.at_least)
             : Number(missed.at_least) + " .. " + Number(missed.at_most);
}

// --- queue and cache ---

struct Load {
  double waiting = 0;
  double usage = -1;  // of the fullest engine; -1: not stated
};
using LoadOverTime = std::map<int64_t, Load>;

// By source, and by engine where a log tells them apart.
std::vector<LoadOverTime> LoadsOf(const Timeline& t) {
  std::map<std::pair<SourceId, int32_t>, LoadOverTime> loads;
  for (const LogLine& line : t.log_lines) {
    const auto waiting = t.Value(line, LogField::kWaiting);
    const auto usage = t.Value(line, LogField::kKvUsage);
    if (!waiting || !usage || line.t_ns == kNoTime) continue;
    loads[{line.source, line.engine}][line.t_ns] = {*waiting, *usage};
  }
  const auto timed = [&](const SignalSeries& s) {
    return t.sources[s.source].clock != ClockDomain::kNone;
  };
  for (const SignalSeries& s : FindSignal(t, Signal::kWaiting)) {
    if (!timed(s)) continue;
    for (size_t i = 0; i < s.size(); ++i) loads[{s.source, -1}][s.t_ns[i]].waiting += s.value[i];
  }
  for (const SignalSeries& s : FindSignal(t, Signal::kKvUsage)) {
    if (!timed(s)) continue;
    for (size_t i = 0; i < s.size(); ++i) {
      double& usage = loads[{s.source, -1}][s.t_ns[i]].usage;
      usage = std::max(usage, s.value[i]);
    }
  }
  std::vector<LoadOverTime> list;
  for (auto& [key, load] : loads) {
    std::erase_if(load, [](const auto& at) { return at.second.usage < 0; });
    list.push_back(std::move(load));
  }
  return list;
}

// The longest time without a gap between readings: pressure shows for no longer.
int64_t LongestStretch(const LoadOverTime& loads) {
  int64_t longest = 0;
  int64_t begin = kNoTime;
  int64_t last = kNoTime;
  for (const auto& [t_ns, load] : loads) {
    if (begin == kNoTime || t_ns - last > kLongestGapNs) begin = t_ns;
    longest = std::max(longest, t_ns - begin);
    last = t_ns;
  }
  return longest;
}

// The longest time without a reading in which nothing waited or the cache had room.
int64_t LongestPressure(const LoadOverTime& loads, double full) {
  int64_t longest = 0;
  int64_t begin = kNoTime;
  int64_t last = kNoTime;
  for (const auto& [t_ns, load] : loads) {
    const bool pressed = load.waiting > 0 && load.usage > full;
    const bool joins = begin != kNoTime && t_ns - last <= kLongestGapNs;
    if (pressed && !joins) begin = t_ns;
    if (!pressed) begin = kNoTime;
    if (begin != kNoTime) longest = std::max(longest, t_ns - begin);
    last = t_ns;
  }
  return longest;
}

// --- preemptions ---

// Preemptions by time, from the readings of one source.
using Increments = std::map<int64_t, double>;

std::vector<Increments> PreemptionsOf(const Timeline& t) {
  std::vector<Increments> list;
  for (const SignalSeries& s : FindSignal(t, Signal::kPreemptions)) {
    if (t.sources[s.source].clock == ClockDomain::kNone) continue;
    Increments increments;
    for (size_t i = 1; i < s.size(); ++i) {
      increments[s.t_ns[i]] += std::max(0.0, s.value[i] - s.value[i - 1]);
    }
    list.push_back(std::move(increments));
  }
  std::map<std::pair<SourceId, int32_t>, Increments> by_log;
  for (const LogLine& line : t.log_lines) {
    if (line.t_ns == kNoTime) continue;
    // vLLM leaves the count out where it is 0. SGLang has a line for each retraction; what its
    // batch lines state is a queue's length.
    const bool batch = t.Value(line, LogField::kRunning).has_value();
    const bool retraction =
        line.kind == LogKind::kEvent && t.Value(line, LogField::kRetracted).has_value();
    if (!batch && !retraction) continue;
    const LogField field = batch ? LogField::kPreemptions : LogField::kRetracted;
    by_log[{line.source, line.engine}][line.t_ns] += t.Value(line, field).value_or(0);
  }
  for (auto& [key, increments] : by_log) list.push_back(std::move(increments));
  return list;
}

int64_t SpanOf(const Increments& increments) {
  return increments.empty() ? 0 : increments.rbegin()->first - increments.begin()->first;
}

// Readings with a preemption: those of one reading have one cause and count once.
struct Halves {
  int early = 0, late = 0;
};

Halves SplitInHalves(const Increments& increments) {
  Halves halves;
  const int64_t first = increments.begin()->first;
  const int64_t middle = first + SpanOf(increments) / 2;
  for (const auto& [t_ns, n] : increments) {
    if (n > 0) ++(t_ns <= middle ? halves.early : halves.late);
  }
  return halves;
}

// --- the parts of the rule; each says whether it had what it needs ---

struct Objective {
  std::vector<std::string_view> histograms;
  std::string_view limit;
  std::string_view metric;
};

void Use(const RuleContext& context, std::string_view limit, Finding& finding) {
  const bool listed = std::any_of(finding.thresholds.begin(), finding.thresholds.end(),
                                  [&](const UsedThreshold& u) { return u.name == limit; });
  if (!listed) finding.thresholds.push_back(context.thresholds.Used(limit));
}

bool JudgeLatency(const RuleContext& context, const Objective& objective, Finding& finding) {
  const Thresholds& limits = context.thresholds;
  const double slo_s = limits[objective.limit];
  bool judged = false;
  for (const LatencyHistogram& h : FindHistograms(context.timeline, objective.histograms)) {
    const Burns burns = BurnsOf(h, slo_s, limits);
    if (!burns.worst) continue;
    judged = true;
    const double limit = limits["overload.burn_rate"];
    // What burns still is reported as it is now, what is over by its worst moment.
    const bool still = burns.at_end && burns.at_end->rate >= limit;
    const Burn& burn = still ? *burns.at_end : *burns.worst;
    if (burn.rate < limit) continue;
    const std::string ago = Duration(static_cast<double>(burn.ago_ns));
    finding.evidence.push_back(
        {.text = {still ? "overload.evidence.burn" : "overload.evidence.burned",
                  {{"metric", h.name},
                   {"slo", Duration(slo_s * 1e9)},
                   {"missed", CountOf(burn.fast)},
                   {"of", Number(burn.fast.total)},
                   {"fast", Duration(static_cast<double>(burn.fast_ns))},
                   {"missed_slow", CountOf(burn.slow)},
                   {"of_slow", Number(burn.slow.total)},
                   {"slow", Duration(static_cast<double>(burn.slow_ns))},
                   {"ago", ago},
                   {"rate", Number(burn.rate)},
                   {"p99", BucketOf(burn.p99)}}},
         .value = burn.rate,
         .unit = "ratio"});
    // The first one leads, and what burns still before what is over.
    if (finding.title.key.empty() || (still && finding.severity != Severity::kSevere)) {
      finding.severity = still ? Severity::kSevere : Severity::kWarn;
      finding.title = {
          still ? "overload.title.burn" : "overload.title.burned",
          {{"metric", std::string(objective.metric)}, {"ago", ago}, {"rate", Number(burn.rate)}}};
      // A slow window that the recording cuts short says less of what lasts.
      const bool whole = burn.slow_ns >= Ns(limits["overload.slow_window_s"]);
      finding.confidence = whole ? 0.9 : 0.7;
    }
    Use(context, "overload.burn_rate", finding);
    Use(context, objective.limit, finding);
  }
  return judged;
}

bool JudgeQueue(const RuleContext& context, Finding& finding) {
  const Thresholds& limits = context.thresholds;
  const int64_t least = Ns(limits["overload.queue_s"]);
  bool judged = false;
  int64_t pressure = 0;
  for (const LoadOverTime& loads : LoadsOf(context.timeline)) {
    if (LongestStretch(loads) < least) continue;
    judged = true;
    pressure = std::max(pressure, LongestPressure(loads, limits["overload.full_cache"]));
  }
  if (!judged || pressure < least) return judged;
  const std::string time = Duration(static_cast<double>(pressure));
  finding.evidence.push_back(
      {.text = {"overload.evidence.queue",
                {{"time", time}, {"full", Percent(limits["overload.full_cache"])}}},
       .value = static_cast<double>(pressure) / 1e9,
       .unit = "s"});
  if (finding.title.key.empty()) finding.title = {"overload.title.queue", {{"time", time}}};
  Use(context, "overload.queue_s", finding);
  return true;
}

bool JudgePreemptions(const RuleContext& context, Finding& finding) {
  const Thresholds& limits = context.thresholds;
  bool judged = false;
  for (const Increments& increments : PreemptionsOf(context.timeline)) {
    if (SpanOf(increments) < Ns(limits["overload.fast_window_s"])) continue;
    judged = true;
    const Halves halves = SplitInHalves(increments);
    // Beyond what equal rates give by chance: the difference of two Poisson counts.
    const double chance = std::sqrt(static_cast<double>(halves.late + halves.early));
    const double rise = halves.late - halves.early;
    if (halves.late < kLeastReadings || rise <= 0) continue;
    if (rise < limits["overload.preemption_sigmas"] * chance) continue;
    finding.evidence.push_back(
        {.text = {"overload.evidence.preemptions",
                  {{"early", Number(halves.early)}, {"late", Number(halves.late)}}},
         .value = static_cast<double>(halves.late),
         .unit = "count"});
    if (finding.title.key.empty()) finding.title = {"overload.title.preemptions", {}};
    Use(context, "overload.preemption_sigmas", finding);
  }
  return judged;
}

}  // namespace

void Overload(const RuleContext& context, Findings& findings) {
  const Thresholds& limits = context.thresholds;
  Finding finding{.id = "overload", .phase = Phase::kUnknown};
  finding.severity = Severity::kWarn;
  finding.confidence = 0.8;
  finding.saving_ms_per_step = std::numeric_limits<double>::quiet_NaN();
  const bool ttft =
      JudgeLatency(context, {{"time_to_first_token"}, "overload.ttft_slo_s", "TTFT"}, finding);
  const bool itl = JudgeLatency(
      context, {{"inter_token_latency", "time_per_output_token"}, "overload.itl_slo_s", "ITL"},
      finding);
  const bool queue = JudgeQueue(context, finding);
  const bool preemptions = JudgePreemptions(context, finding);

  const std::string window = Duration(limits["overload.fast_window_s"] * 1e9);
  const std::string least = Number(limits["overload.min_requests"]);
  const auto open = [&](Text why) { findings.abstained.push_back({"overload", std::move(why)}); };
  if (!ttft && !itl && !queue && !preemptions) {
    open({"abstain.no_load_windows", {{"time", window}, {"least", least}}});
  } else {
    for (const auto& [judged, metric] : {std::pair(ttft, "TTFT"), std::pair(itl, "ITL")}) {
      if (judged) continue;
      open(
          {"abstain.no_latency_windows", {{"metric", metric}, {"time", window}, {"least", least}}});
    }
    if (!queue) {
      open({"abstain.no_queue_windows",
            {{"time", Duration(limits["overload.queue_s"] * 1e9)},
             {"gap", Duration(static_cast<double>(kLongestGapNs))}}});
    }
    if (!preemptions) open({"abstain.no_preemption_windows", {{"time", window}}});
  }
  if (finding.evidence.empty()) return;
  finding.change = {"overload.change", {}};
  finding.risk = {"overload.risk", {}};
  finding.undo = {"overload.undo", {}};
  findings.findings.push_back(std::move(finding));
}

}  // namespace fathom::diagnose
