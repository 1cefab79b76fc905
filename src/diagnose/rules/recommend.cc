#include "diagnose/rules/recommend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "diagnose/understand/observations.h"
#include "diagnose/understand/parallelism.h"
#include "diagnose/understand/signals.h"

namespace fathom::diagnose {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// A batch is sized for this share of the cache: growth of running sequences needs the rest.
constexpr double kUsableCache = 0.9;
// The recommended batch must differ this much from what ran before it is worth a change.
constexpr double kWorthChanging = 1.2;
// Beyond this share of the tokens/s that a batch can reach, more sequences only lengthen tokens.
constexpr double kKneeShare = 0.8;
// A prefill chunk may stretch a step to this many times a pure decode step.
constexpr double kMixedStepRatio = 2;
// A fit that misses held-out steps by more than this is not used.
constexpr double kMaxModelError = 0.15;

double QuantileOfSorted(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

// What logs and metrics say about the cache and the batch.
struct CacheEvidence {
  std::vector<double> tokens_per_sequence;  // one a window
  std::vector<double> eager_batches;        // running requests where no graph ran
  double capacity = 0;                      // tokens; 0: unknown
  double most_running = 0, most_waiting = 0, most_usage = 0, preemptions = 0;
  bool fp8 = false;
};

CacheEvidence Collect(const Timeline& t) {
  CacheEvidence e;
  for (const LogLine& line : t.log_lines) {
    if (const auto tokens = t.Value(line, LogField::kKvCapacityTokens)) e.capacity = *tokens;
  }
  double cumulative = 0;
  for (const LogLine& line : t.log_lines) {
    const auto running = t.Value(line, LogField::kRunning);
    const auto usage = t.Value(line, LogField::kKvUsage);
    const auto tokens = t.Value(line, LogField::kTokens);
    e.most_running = std::max(e.most_running, running.value_or(0));
    e.most_waiting = std::max(e.most_waiting, t.Value(line, LogField::kWaiting).value_or(0));
    e.most_usage = std::max(e.most_usage, usage.value_or(0));
    const double preempted = t.Value(line, LogField::kPreemptions).value_or(0);
    if (line.kind == LogKind::kEvent) {
      cumulative = std::max(cumulative, preempted);
    } else {
      e.preemptions += preempted;
    }
    e.preemptions += t.Value(line, LogField::kRetracted).value_or(0);
    // Rounded to a percent, a small use says little about the capacity.
    if (e.capacity == 0 && tokens && usage && *usage >= 0.2) e.capacity = *tokens / *usage;
    if (running && *running > 0) {
      if (tokens) {
        e.tokens_per_sequence.push_back(*tokens / *running);
      } else if (usage && e.capacity > 0) {
        e.tokens_per_sequence.push_back(*usage * e.capacity / *running);
      }
      if (t.Value(line, LogField::kCudaGraph) == 0.0 && line.kind == LogKind::kDecode) {
        e.eager_batches.push_back(*running);
      }
    }
  }
  e.preemptions += cumulative;
  for (const SignalSeries& s : FindSignal(t, Signal::kKvUsage)) {
    e.most_usage = std::max(e.most_usage, s.Quantile(1));
  }
  for (const SignalSeries& s : FindSignal(t, Signal::kPreemptions)) {
    e.preemptions += std::max(0.0, s.value.back() - (s.size() > 1 ? s.value.front() : 0));
  }
  for (const Series& s : t.series) {
    e.fp8 = e.fp8 || (t.Name(s.name).ends_with("cache_config_info") &&
                      t.Name(s.labels).find("cache_dtype=\"fp8") != std::string_view::npos);
  }
  std::sort(e.tokens_per_sequence.begin(), e.tokens_per_sequence.end());
  std::sort(e.eager_batches.begin(), e.eager_batches.end());
  return e;
}

// A line through points, fitted on the even ones and checked on the odd ones.
struct Fit {
  double base = 0, slope = 0;
  double error = 0;    // median over the held-out points, of their value
  double largest = 0;  // x that it was fitted on: beyond it the line is a guess
};

// Nothing where it does not rise or misses the held-out points.
std::optional<Fit> FitLine(const std::vector<std::pair<double, double>>& points) {
  if (points.size() < kMinTailSteps) return std::nullopt;
  std::vector<std::pair<double, double>> fit, held_out;
  for (const auto& point : points) {
    ((fit.size() + held_out.size()) % 2 == 0 ? fit : held_out).push_back(point);
  }
  double mx = 0, my = 0, xx = 0, xy = 0;
  for (const auto& [x, y] : fit) {
    mx += x / static_cast<double>(fit.size());
    my += y / static_cast<double>(fit.size());
  }
  Fit line;
  for (const auto& [x, y] : fit) {
    xx += (x - mx) * (x - mx);
    xy += (x - mx) * (y - my);
    line.largest = std::max(line.largest, x);
  }
  // Infinite times of a broken input make these NaN: no line either.
  if (!(xx > 0 && xy > 0)) return std::nullopt;
  line.slope = xy / xx;
  line.base = my - line.slope * mx;
  std::vector<double> errors;
  for (const auto& [x, y] : held_out) {
    errors.push_back(std::fabs(line.base + line.slope * x - y) / y);
  }
  line.error = Median(errors);
  if (!(line.error <= kMaxModelError)) return std::nullopt;
  return line;
}

// Time of a token by the number of sequences that decode together, ns: decode steps of a trace,
// windows of a log in which nothing but decode ran.
std::optional<Fit> TokenTimeByBatch(const RuleContext& context) {
  std::vector<std::pair<double, double>> points;
  for (uint32_t i = 0; i < context.steps.all.size(); ++i) {
    const Step& step = context.steps.all[i];
    if (step.phase != Phase::kDecode || step.warmup || std::isnan(step.batch)) continue;
    points.emplace_back(step.batch, static_cast<double>(context.account(i).wall_ns));
  }
  const Timeline& t = context.timeline;
  for (const LogLine& line : t.log_lines) {
    const auto running = t.Value(line, LogField::kRunning);
    const auto rate = t.Value(line, LogField::kDecodeTokensPerS);
    const bool decode = line.kind == LogKind::kDecode ||
                        t.Value(line, LogField::kPromptTokensPerS).value_or(-1) == 0;
    if (!decode || !running || !rate || *running <= 0 || *rate <= 0) continue;
    points.emplace_back(*running, *running / *rate * 1e9);
  }
  return FitLine(points);
}

// Sequences at which decode reaches kKneeShare of the tokens/s that any number of them could;
// infinite where that is not measured.
double KneeBatch(const std::optional<Fit>& token_time) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  if (!token_time || token_time->base <= 0) return kUnknown;
  // b / (base + slope b) = share / slope
  const double knee =
      std::floor(kKneeShare / (1 - kKneeShare) * token_time->base / token_time->slope);
  return knee >= 1 && knee <= token_time->largest ? knee : kUnknown;
}

void MaxBatch(const RuleContext& context, const CacheEvidence& e,
              std::vector<Recommendation>& out) {
  if (e.capacity <= 0 || e.tokens_per_sequence.empty()) return;
  const double tokens = QuantileOfSorted(e.tokens_per_sequence, 0.95);
  const double fits = std::floor(kUsableCache * e.capacity / std::max(tokens, 1.0));
  const std::optional<Fit> token_time = TokenTimeByBatch(context);
  const double knee = KneeBatch(token_time);
  const double batch = std::min(fits, knee);
  const bool too_many = e.preemptions > 0 || e.most_usage > kFullCache;
  const bool room = e.most_waiting > 0 && batch > kWorthChanging * e.most_running;
  if (batch < 1 || (!room && !(too_many && batch < e.most_running))) return;
  Recommendation recommendation = {"max-batch",
                                   {"recommend.max_batch", {{"batch", Number(batch)}}},
                                   {"recommend.max_batch.why",
                                    {{"tokens", Number(std::round(tokens))},
                                     {"capacity", Number(std::round(e.capacity))},
                                     {"running", Number(e.most_running)},
                                     {"waiting", Number(e.most_waiting)}}}};
  if (knee < fits) {
    recommendation.why.key = "recommend.max_batch.why.knee";
    recommendation.why.args.insert(recommendation.why.args.end(),
                                   {{"fits", Number(fits)},
                                    {"share", Percent(kKneeShare)},
                                    {"base", Duration(token_time->base)},
                                    {"each", Duration(token_time->slope)},
                                    {"error", Percent(token_time->error)}});
  }
  out.push_back(std::move(recommendation));
}

void KvDtype(const CacheEvidence& e, std::vector<Recommendation>& out) {
  if (e.fp8 || (e.most_usage <= kFullCache && e.preemptions <= 0)) return;
  out.push_back({"kv-dtype",
                 {"recommend.kv_dtype", {}},
                 {"recommend.kv_dtype.why",
                  {{"usage", Percent(e.most_usage)}, {"n", Number(e.preemptions)}}}});
}

void CaptureSizes(const CacheEvidence& e, std::vector<Recommendation>& out) {
  if (e.eager_batches.empty()) return;
  out.push_back(
      {"capture-sizes",
       {"recommend.capture_sizes", {{"batch", Number(QuantileOfSorted(e.eager_batches, 0.99))}}},
       {"recommend.capture_sizes.why",
        {{"n", std::to_string(e.eager_batches.size())},
         {"least", Number(e.eager_batches.front())},
         {"most", Number(e.eager_batches.back())}}}});
}

// Wall time of a mixed step by its prompt tokens.
void ChunkTokens(const RuleContext& context, std::vector<Recommendation>& out) {
  std::vector<std::pair<double, double>> points;
  for (uint32_t i = 0; i < context.steps.all.size(); ++i) {
    const Step& step = context.steps.all[i];
    if (step.phase != Phase::kMixed || step.warmup || std::isnan(step.prompt_tokens)) continue;
    points.emplace_back(step.prompt_tokens, static_cast<double>(context.account(i).wall_ns));
  }
  const Bucket* decode = context.steps.Main(Phase::kDecode);
  const std::optional<Fit> line = FitLine(points);
  if (!line || decode == nullptr || decode->counted.size() < kMinSteps) return;
  const double typical = MedianOver(
      *decode, [&](uint32_t s) { return static_cast<double>(context.account(s).wall_ns); });
  const double chunk = (kMixedStepRatio * typical - line->base) / line->slope;
  // Only a smaller chunk than what ran is a change.
  if (chunk < 1 || chunk >= line->largest) return;
  out.push_back({"chunk-tokens",
                 {"recommend.chunk_tokens", {{"tokens", Number(std::round(chunk))}}},
                 {"recommend.chunk_tokens.why",
                  {{"base", Duration(line->base)},
                   {"per_token", Duration(line->slope)},
                   {"error", Percent(line->error)},
                   {"typical", Duration(typical)}}}});
}

// Of a typical decode step with communication; NaN where no trace shows one.
double ExposedCommunication(const RuleContext& context) {
  const Bucket* decode = context.steps.Main(Phase::kDecode);
  if (decode == nullptr || decode->counted.size() < kMinSteps) return kNaN;
  const double share = MedianOver(*decode, [&](uint32_t s) {
    const StepAccount& a = context.account(s);
    return static_cast<double>(a.exposed_communication_ns) /
           static_cast<double>(std::max<int64_t>(a.wall_ns, 1));
  });
  return share > 0 ? share : kNaN;
}

// Sequences that one replica of the attention ran on average while any ran; NaN where no log states
// it. A server without requests says nothing about its division: windows in which no replica ran
// one do not count, an idle replica beside a busy one does.
double RunningPerReplica(const Timeline& t, int replicas) {
  constexpr int64_t kWindowNs = 10'000'000'000;  // vLLM's; each of its engines prints a line
  struct Window {
    double sum = 0;
    double lines = 0;
  };
  std::map<int64_t, Window> windows;
  for (const LogLine& line : t.log_lines) {
    const auto running = t.Value(line, LogField::kRunning);
    if (!running) continue;
    Window& window = windows[line.t_ns / kWindowNs];
    window.sum += line.engine >= 0 ? *running : *running / replicas;
    ++window.lines;
  }
  Window busy;
  for (const auto& [start, window] : windows) {
    if (window.sum <= 0) continue;
    busy.sum += window.sum;
    busy.lines += window.lines;
  }
  return busy.lines > 0 ? busy.sum / busy.lines : kNaN;
}

// Ranks that share a sequence's heads keep its keys and values more than once where there are fewer
// heads than ranks, MLA's single latent always: data-parallel attention keeps them once, and needs
// no all-reduce behind the attention. Without copies it gains nothing, and leaves ranks idle at a
// small load.
void AttentionOverRanks(const RuleContext& context, const CacheEvidence& e,
                        std::vector<Recommendation>& out) {
  const AttentionParallelism p = FindAttentionParallelism(context.index, context.steps);
  const bool short_of_cache = e.most_usage > kFullCache || e.preemptions > 0;
  const double exposed = ExposedCommunication(context);
  const bool communicates = exposed > context.thresholds["tp-collective.exposed_share"];
  if (p.copies() > 1 && (short_of_cache || communicates)) {
    const bool latent = p.kv_heads == 0;
    // On as many GPUs as now.
    const int groups = (latent ? p.ranks : p.copies()) * std::max(p.replicas, 1);
    const std::vector<std::pair<std::string_view, std::string>> args = {
        {"ranks", std::to_string(p.ranks)},
        {"heads", std::to_string(p.kv_heads)},
        {"copies", std::to_string(p.copies())},
        {"groups", std::to_string(groups)},
        {"exposed", Percent(exposed)},
        {"usage", e.most_usage > 0 ? Percent(e.most_usage) : "?"},
        {"preempted", Number(e.preemptions)}};
    out.push_back(
        {"attention-dp",
         {latent ? "recommend.attention_dp" : "recommend.attention_dp.heads", args},
         {latent ? "recommend.attention_dp.why.latent" : "recommend.attention_dp.why.heads",
          args}});
  }
  const int together = p.replicas * std::max(p.ranks, 1);
  const double running = RunningPerReplica(context.timeline, std::max(p.replicas, 1));
  if (p.replicas > 1 && p.kv_heads >= together && running < 1 && !short_of_cache) {
    out.push_back({"attention-tp",
                   {"recommend.attention_tp", {{"ranks", std::to_string(together)}}},
                   {"recommend.attention_tp.why",
                    {{"heads", std::to_string(p.kv_heads)},
                     {"ranks", std::to_string(together)},
                     {"replicas", std::to_string(p.replicas)},
                     {"running", Number(running)}}}});
  }
}

}  // namespace

std::vector<Recommendation> Recommend(const RuleContext& context) {
  std::vector<Recommendation> out;
  const CacheEvidence evidence = Collect(context.timeline);
  MaxBatch(context, evidence, out);
  KvDtype(evidence, out);
  CaptureSizes(evidence, out);
  ChunkTokens(context, out);
  AttentionOverRanks(context, evidence, out);
  return out;
}

}  // namespace fathom::diagnose
