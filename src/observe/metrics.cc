#include "observe/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "observe/ledger.h"

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;
using Buckets = prometheus::Histogram::BucketBoundaries;

// Own buckets contain vLLM's, so that one query serves both, and go finer where a small model or a
// GPU decode step lives.
const Buckets kTtftOwn = {.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03,
                          .04,   .06,  .08,  .1,   .15,  .25,   .5,  .75,  1,   2.5,
                          5,     7.5,  10,   20,   40,   80,    160, 640,  2560};
const Buckets kTtftVllm = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                           1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kItlOwn = {.0005, .001, .002, .003, .004, .005, .0075, .01, .015, .02,
                         .025,  .03,  .04,  .05,  .075, .1,   .15,   .2,  .3,   .4,
                         .5,    .75,  1,    2.5,  5,    7.5,  10,    20,  40,   80};
const Buckets kItlVllm = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                          .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestOwn = {.001, .0025, .005, .01, .025, .05, .1,  .2,   .3,  .5,
                             .8,   1,     1.5,  2,   2.5,  5,   10,  15,   20,  30,
                             40,   50,    60,   120, 240,  480, 960, 1920, 7680};
const Buckets kRequestVllm = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                              30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kIteration = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kParamsN = {1, 2, 5, 10, 20};
const Buckets kStepSeconds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025,
                              .05,   .1,     .25,   .5,   1,     2.5,  5,   10};

constexpr size_t kRememberedSteps = 256;

Buckets OneTwoFive(int32_t max) {
  Buckets out;
  for (double scale = 1;; scale *= 10) {
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m * scale > max) return out.empty() ? Buckets{1} : out;
      out.push_back(m * scale);
    }
  }
}

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

constexpr std::array<const char*, 3> kPhases = {"prefill", "decode", "mixed"};
constexpr std::array<const char*, 2> kClocks = {"host", "gpu"};  // event::ClockDomain

size_t PhaseOf(uint64_t tokens, uint64_t prompt_tokens) {
  return prompt_tokens == 0 ? 1 : prompt_tokens >= tokens ? 0 : 2;
}

// vLLM knows one word for a request that its client or a deadline ended.
std::string_view VllmFinishReason(std::string_view reason) {
  return reason == "cancelled" || reason == "deadline" ? "abort" : reason;
}

}  // namespace

void Metrics::Histogram::Observe(double value) const {
  own->Observe(value);
  for (prometheus::Histogram* histogram : compat) histogram->Observe(value);
}

prometheus::Histogram* Metrics::AddHistogram(const std::string& full_name, const std::string& help,
                                             const std::map<std::string, std::string>& labels,
                                             const Buckets& buckets) {
  return &prometheus::BuildHistogram().Name(full_name).Help(help).Register(registry_).Add(labels,
                                                                                          buckets);
}

Metrics::Histogram Metrics::MakeHistogram(const std::string& name, const std::string& help,
                                          const Buckets& own, const Buckets& vllm,
                                          const std::vector<std::string>& vllm_aliases) {
  Histogram out;
  out.own = AddHistogram(fmt::format("fathom:{}", name), help,
                         {{"model_name", options_.model_name}}, own);
  if (!options_.vllm_names) return out;
  std::vector<std::string> names = vllm_aliases;
  names.insert(names.begin(), name);
  for (const std::string& alias : names) {
    out.compat.push_back(AddHistogram(fmt::format("vllm:{}", alias), help,
                                      {{"model_name", options_.model_name}, {"engine", "0"}},
                                      vllm));
  }
  return out;
}

prometheus::Family<prometheus::Counter>* Metrics::AddCounters(const std::string& full_name,
                                                              const std::string& help,
                                                              bool vllm_labels) {
  std::map<std::string, std::string> labels = {{"model_name", options_.model_name}};
  if (vllm_labels) labels.emplace("engine", "0");
  return &prometheus::BuildCounter().Name(full_name).Help(help).Labels(labels).Register(registry_);
}

Metrics::Metrics(MetricsOptions options, std::function<EngineGauges()> read_engine)
    : options_(std::move(options)), read_engine_(std::move(read_engine)) {
  const Buckets tokens = OneTwoFive(options_.max_context_tokens);
  ttft_ = MakeHistogram("time_to_first_token_seconds", "Arrival to the first token", kTtftOwn,
                        kTtftVllm);
  itl_ = MakeHistogram("inter_token_latency_seconds", "Between two tokens of a request", kItlOwn,
                       kItlVllm, {"time_per_output_token_seconds"});
  tpot_ = MakeHistogram("request_time_per_output_token_seconds",
                        "First to last token over the tokens after the first", kItlOwn, kItlVllm);
  e2e_ = MakeHistogram("e2e_request_latency_seconds", "Arrival to the last token", kRequestOwn,
                       kRequestVllm);
  queue_ = MakeHistogram("request_queue_time_seconds", "In the engine's queue", kRequestOwn,
                         kRequestVllm);
  inference_ = MakeHistogram("request_inference_time_seconds", "Scheduled to the last token",
                             kRequestOwn, kRequestVllm);
  prefill_ = MakeHistogram("request_prefill_time_seconds", "Scheduled to the first token",
                           kRequestOwn, kRequestVllm);
  decode_ = MakeHistogram("request_decode_time_seconds", "First to the last token", kRequestOwn,
                          kRequestVllm);
  prompt_tokens_ = MakeHistogram("request_prompt_tokens", "Tokens of a prompt", tokens, tokens);
  generated_tokens_ =
      MakeHistogram("request_generation_tokens", "Tokens generated for a request", tokens, tokens);
  iteration_tokens_ =
      MakeHistogram("iteration_tokens_total", "Tokens of a step", kIteration, kIteration);
  params_n_ = MakeHistogram("request_params_n", "Choices asked for", kParamsN, kParamsN);
  params_max_tokens_ =
      MakeHistogram("request_params_max_tokens", "max_tokens asked for", tokens, tokens);

  const std::map<std::string, std::string> labels = {{"model_name", options_.model_name}};
  auto& step_family = prometheus::BuildHistogram()
                          .Name("fathom:step_seconds")
                          .Help("Steps by phase: prefill, decode or mixed")
                          .Labels(labels)
                          .Register(registry_);
  for (size_t phase = 0; phase < kPhases.size(); ++phase) {
    step_seconds_[phase] = &step_family.Add({{"phase", kPhases[phase]}}, kStepSeconds);
  }
  http_seconds_ = &prometheus::BuildHistogram()
                       .Name("http_request_duration_seconds")
                       .Help("HTTP requests, to the last byte of the response")
                       .Register(registry_);
  http_requests_ = &prometheus::BuildCounter()
                        .Name("http_requests_total")
                        .Help("HTTP requests")
                        .Register(registry_);
  finished_ = AddCounters("fathom:request_success_total", "Requests that ended, by reason");
  if (options_.vllm_names) {
    finished_vllm_ =
        AddCounters("vllm:request_success_total", "Requests that ended, by reason", true);
  }
  op_seconds_ = AddCounters("fathom:step_op_seconds_total",
                            "Time of each op inside steps, by phase and by whose clock it is");
  part_seconds_ = AddCounters("fathom:request_part_seconds_total",
                              "Where the wall time of ended requests went");
  cache_misses_ = AddCounters("fathom:prefix_cache_misses_total",
                              "Prompts whose cached prefix ended early, by cause");
  // Series that exist from the start count from 0: their first increase is not lost on rate().
  for (size_t i = 0; i < kNumParts; ++i) PartSeconds(i);
  for (uint16_t reason = 0; FinishReasonName(reason) != "unknown"; ++reason) CountFinish(reason, 0);
  for (size_t i = 1; i < static_cast<size_t>(event::MissCause::kCount); ++i) {
    cache_misses_->Add({{"cause", std::string(NameOf(static_cast<event::MissCause>(i)))}});
  }
  dropped_ = &AddCounters("fathom:events_dropped_total",
                          "Events lost because the ring was full; ledgers lack them")
                  ->Add({});
}

Metrics::~Metrics() = default;

void Metrics::Consume(std::span<const Event> events) {
  for (const Event& e : events) Apply(e);
}

void Metrics::OnDropped(uint64_t count) { dropped_->Increment(static_cast<double>(count)); }

void Metrics::ObserveRequest(int32_t n, std::optional<int32_t> max_tokens) {
  params_n_.Observe(n);
  if (max_tokens) params_max_tokens_.Observe(*max_tokens);
}

void Metrics::ObserveHttp(std::string_view handler, std::string_view method, int status,
                          double seconds) {
  const std::string h(handler), m(method);
  http_requests_->Add({{"handler", h}, {"method", m}, {"status", std::to_string(status)}})
      .Increment();
  http_seconds_->Add({{"handler", h}, {"method", m}}, kRequestOwn).Observe(seconds);
}

void Metrics::ObserveLedger(const RequestLedger& ledger) {
  for (size_t i = 0; i < kNumParts; ++i) {
    if (ledger.total.ns[i] == 0) continue;
    PartSeconds(i).Increment(Seconds(ledger.total.ns[i]));
  }
}

prometheus::Counter& Metrics::PartSeconds(size_t part) {
  return part_seconds_->Add({{"part", std::string(NameOf(static_cast<Part>(part)))}});
}

void Metrics::CountFinish(uint16_t reason, double count) {
  const std::string_view name = FinishReasonName(reason);
  finished_->Add({{"finished_reason", std::string(name)}}).Increment(count);
  if (finished_vllm_ == nullptr) return;
  finished_vllm_->Add({{"finished_reason", std::string(VllmFinishReason(name))}}).Increment(count);
}

void Metrics::Apply(const Event& e) {
  switch (e.kind) {
    case Kind::kRequestArrived:
      requests_[e.request_id].arrived_ns = e.start_ns;
      break;
    case Kind::kQueued: {
      RequestTimes& times = requests_[e.request_id];
      times.queued_ns = e.start_ns;
      times.prompt_tokens = e.value;
      break;
    }
    case Kind::kScheduled:
      if (auto it = requests_.find(e.request_id); it != requests_.end() && !it->second.first_ns) {
        it->second.scheduled_ns = e.start_ns;
      }
      break;
    case Kind::kStep:
      OnStep(e);
      break;
    case Kind::kOp:
      OnOp(e);
      break;
    case Kind::kToken:
      OnToken(e);
      break;
    case Kind::kFinished:
      OnFinished(e);
      break;
    case Kind::kResponded:  // also of a request that never reached the engine
      requests_.erase(e.request_id);
      break;
    case Kind::kCacheMiss:
      cache_misses_->Add({{"cause", std::string(NameOf(static_cast<event::MissCause>(e.flags)))}})
          .Increment();
      break;
    default:
      break;
  }
}

void Metrics::OnStep(const Event& e) {
  iteration_tokens_.Observe(static_cast<double>(e.value));
  StepOps& step = steps_[e.step_id];
  step.phase = PhaseOf(e.value, e.aux);
  step_seconds_[*step.phase]->Observe(Seconds(e.duration_ns));
  for (size_t clock = 0; clock < kClocks.size(); ++clock) {
    for (size_t op = 0; op < kNumOps; ++op) {
      if (const int64_t ns = step.pending_ns[clock][op]; ns > 0) {
        AddOpTime(*step.phase, clock, op, ns);
      }
    }
  }
  while (steps_.size() > kRememberedSteps) steps_.erase(steps_.begin());
}

void Metrics::OnOp(const Event& e) {
  const auto clock = static_cast<size_t>(e.clock);
  const auto op = static_cast<size_t>(e.op);
  if (op >= kNumOps || clock >= kClocks.size()) return;
  StepOps& step = steps_[e.step_id];
  if (step.phase) {
    AddOpTime(*step.phase, clock, op, e.duration_ns);
  } else {
    step.pending_ns[clock][op] += e.duration_ns;
  }
}

void Metrics::AddOpTime(size_t phase, size_t clock, size_t op, int64_t ns) {
  prometheus::Counter*& counter = op_counters_[phase][clock][op];
  if (counter == nullptr) {
    counter = &op_seconds_->Add({{"phase", kPhases[phase]},
                                 {"op", std::string(NameOf(static_cast<event::Op>(op)))},
                                 {"clock", kClocks[clock]}});
  }
  counter->Increment(Seconds(ns));
}

void Metrics::OnToken(const Event& e) {
  const auto it = requests_.find(e.request_id);
  if (it == requests_.end()) return;
  RequestTimes& times = it->second;
  if (times.first_ns) {
    itl_.Observe(Seconds(e.start_ns - times.last_ns));
  } else {
    times.first_ns = e.start_ns;
    if (times.arrived_ns) ttft_.Observe(Seconds(e.start_ns - *times.arrived_ns));
  }
  times.last_ns = e.start_ns;
  ++times.tokens;
}

void Metrics::OnFinished(const Event& e) {
  CountFinish(e.flags, 1);
  const auto it = requests_.find(e.request_id);
  if (it == requests_.end()) return;
  const RequestTimes times = it->second;
  requests_.erase(it);
  prompt_tokens_.Observe(static_cast<double>(times.prompt_tokens));
  generated_tokens_.Observe(static_cast<double>(e.value));
  if (times.queued_ns && times.scheduled_ns) {
    queue_.Observe(Seconds(*times.scheduled_ns - *times.queued_ns));
  }
  if (!times.first_ns) return;
  if (times.arrived_ns) e2e_.Observe(Seconds(times.last_ns - *times.arrived_ns));
  if (times.scheduled_ns) {
    prefill_.Observe(Seconds(*times.first_ns - *times.scheduled_ns));
    inference_.Observe(Seconds(times.last_ns - *times.scheduled_ns));
  }
  decode_.Observe(Seconds(times.last_ns - *times.first_ns));
  if (times.tokens > 1) {
    tpot_.Observe(Seconds(times.last_ns - *times.first_ns) / static_cast<double>(times.tokens - 1));
  }
}

std::vector<prometheus::MetricFamily> Metrics::EngineFamilies() const {
  using prometheus::ClientMetric;
  using prometheus::MetricFamily;
  using prometheus::MetricType;
  using Labels = std::vector<std::pair<std::string, std::string>>;
  const EngineGauges g = read_engine_();
  std::vector<MetricFamily> out;

  auto add = [&](const std::string& full_name, const std::string& help, MetricType type,
                 const std::vector<std::pair<Labels, double>>& values) {
    MetricFamily family{full_name, help, type, {}};
    for (const auto& [labels, value] : values) {
      ClientMetric metric;
      metric.label.push_back({"model_name", options_.model_name});
      if (full_name.starts_with("vllm:")) metric.label.push_back({"engine", "0"});
      for (const auto& [name, label] : labels) metric.label.push_back({name, label});
      (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
      family.metric.push_back(std::move(metric));
    }
    out.push_back(std::move(family));
  };
  auto both = [&](const std::string& name, const std::string& help, MetricType type,
                  const std::vector<std::pair<Labels, double>>& values) {
    add(fmt::format("fathom:{}", name), help, type, values);
    if (options_.vllm_names) add(fmt::format("vllm:{}", name), help, type, values);
  };
  auto gauge = [&](const std::string& name, const std::string& help, double value) {
    both(name, help, MetricType::Gauge, {{{}, value}});
  };
  auto counter = [&](const std::string& name, const std::string& help, uint64_t value) {
    both(name, help, MetricType::Counter, {{{}, static_cast<double>(value)}});
  };

  const auto waiting = static_cast<double>(g.waiting);
  const auto total = static_cast<double>(g.pages_total);
  const double usage =
      g.pages_total == 0
          ? 0
          : static_cast<double>(g.pages_total - g.pages_free - g.pages_cached) / total;
  gauge("num_requests_running", "Requests in the running batch", static_cast<double>(g.running));
  gauge("num_requests_waiting", "Requests in the queue", waiting);
  both("num_requests_waiting_by_reason", "Requests in the queue, by what they wait for",
       MetricType::Gauge, {{{{"reason", "capacity"}}, waiting}, {{{"reason", "deferred"}}, 0}});
  gauge("kv_cache_usage_perc", "Pages held by requests over all pages, 0 to 1", usage);
  counter("prefix_cache_queries_total", "Prompt tokens looked up", g.prefix_queries_tokens);
  counter("prefix_cache_hits_total", "Prompt tokens found", g.prefix_hits_tokens);
  counter("num_preemptions_total", "Requests whose pages were taken back", g.preemptions);
  counter("prompt_tokens_total", "Prompt tokens of admitted requests", g.prompt_tokens);
  counter("prompt_tokens_cached_total", "Of them, taken from the prefix cache",
          g.prefix_hits_tokens);
  counter("generation_tokens_total", "Tokens generated", g.generated_tokens);
  both("cache_config_info", "The cache's configuration", MetricType::Gauge,
       {{Labels(options_.cache_config.begin(), options_.cache_config.end()), 1}});

  add("fathom:steps_total", "Steps run", MetricType::Counter, {{{}, static_cast<double>(g.steps)}});
  add("fathom:pages", "Pages of the cache, by use", MetricType::Gauge,
      {{{{"use", "free"}}, static_cast<double>(g.pages_free)},
       {{{"use", "cached"}}, static_cast<double>(g.pages_cached)},
       {{{"use", "held"}}, total - static_cast<double>(g.pages_free + g.pages_cached)}});
  add("fathom:healthy", "1 while the engine can serve", MetricType::Gauge,
      {{{}, g.healthy ? 1.0 : 0.0}});
  if (options_.vllm_names) {  // names that older dashboards still ask for
    add("vllm:gpu_cache_usage_perc", "The older name of kv_cache_usage_perc", MetricType::Gauge,
        {{{}, usage}});
    add("vllm:gpu_prefix_cache_hit_rate", "Prompt tokens found over looked up", MetricType::Gauge,
        {{{},
          g.prefix_queries_tokens == 0 ? 0
                                       : static_cast<double>(g.prefix_hits_tokens) /
                                             static_cast<double>(g.prefix_queries_tokens)}});
    add("vllm:num_requests_swapped", "Always 0: preemption recomputes", MetricType::Gauge,
        {{{}, 0}});
  }
  return out;
}

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families = EngineFamilies();
  for (auto& family : registry_.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace fathom::observe
