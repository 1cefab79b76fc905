#include "diagnose/understand/observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/strings.h"
#include "diagnose/rules/rule.h"
#include "diagnose/understand/histograms.h"
#include "diagnose/understand/numa.h"
#include "diagnose/understand/signals.h"
#include "event/sample.h"

namespace fathom::diagnose {
namespace {

// Above this the hypervisor gives a noticeable part of the machine to others.
constexpr double kMuchSteal = 0.05;
constexpr size_t kShownNames = 3;
constexpr size_t kShownNameBytes = 60;

struct Gauge {
  double sum = 0;
  double max = 0;
  size_t n = 0;
  void Add(double value) {
    sum += value;
    max = n == 0 ? value : std::max(max, value);
    ++n;
  }
  double mean() const { return sum / static_cast<double>(n); }
};

// What a server's log lines and its metrics both may say.
struct ServerState {
  Gauge running, waiting, kv_usage, decode_rate, hit_rate, accept_length, accept_rate;
  double preemptions = 0;
  bool counts_preemptions = false;
  size_t windows = 0;            // with both a queue length and a cache use
  size_t pressed = 0;            // of them, waiting > 0 with a full cache
  Gauge held_back, room_usage;   // waiting > 0 with room in the cache: how many, how full
  size_t batches = 0;            // decode batches that say whether a graph ran
  size_t eager = 0;              // of them, without
  double hits = 0, queries = 0;  // tokens, from counters
};

void AddWindow(double waiting, double usage, ServerState& state) {
  ++state.windows;
  if (waiting <= 0) return;
  if (usage > kFullCache) {
    ++state.pressed;
  } else {
    state.held_back.Add(waiting);
    state.room_usage.Add(usage);
  }
}

void AddLog(const Timeline& t, ServerState& state) {
  double cumulative = 0;
  for (const LogLine& line : t.log_lines) {
    const auto add = [&](LogField field, Gauge& gauge) {
      const auto value = t.Value(line, field);
      if (value) gauge.Add(*value);
      return value;
    };
    add(LogField::kRunning, state.running);
    const auto waiting = add(LogField::kWaiting, state.waiting);
    const auto usage = add(LogField::kKvUsage, state.kv_usage);
    add(LogField::kDecodeTokensPerS, state.decode_rate);
    add(LogField::kPrefixHitRate, state.hit_rate);
    add(LogField::kAcceptLength, state.accept_length);
    add(LogField::kAcceptRate, state.accept_rate);
    if (waiting && usage) {
      AddWindow(*waiting, *usage, state);
    }
    for (const LogField field : {LogField::kPreemptions, LogField::kRetracted}) {
      const auto value = t.Value(line, field);
      if (!value) continue;
      state.counts_preemptions = true;
      // An event states the count since the start, a statistics line that of its window.
      if (line.kind == LogKind::kEvent && field == LogField::kPreemptions) {
        cumulative = std::max(cumulative, *value);
      } else {
        state.preemptions += *value;
      }
    }
    const auto cached = t.Value(line, LogField::kCachedTokens);
    const auto fresh = t.Value(line, LogField::kNewTokens);
    if (cached && fresh) {
      state.hits += *cached;
      state.queries += *cached + *fresh;
    }
    if (line.kind != LogKind::kDecode) continue;
    if (const auto graph = t.Value(line, LogField::kCudaGraph)) {
      ++state.batches;
      state.eager += *graph == 0 ? 1 : 0;
    }
  }
  state.preemptions += cumulative;
}

double Growth(const SignalSeries& s) {
  return s.size() >= 2 ? s.value.back() - s.value.front() : s.value.front();
}

void AddMetrics(const Timeline& t, ServerState& state) {
  for (const SignalSeries& s : FindSignal(t, Signal::kRunning)) {
    for (const double v : s.value) state.running.Add(v);
  }
  const auto usage = FindSignal(t, Signal::kKvUsage);
  for (const SignalSeries& s : usage) {
    for (const double v : s.value) state.kv_usage.Add(v);
  }
  for (const SignalSeries& s : FindSignal(t, Signal::kWaiting)) {
    for (const double v : s.value) state.waiting.Add(v);
    for (const SignalSeries& u : usage) {
      if (u.source != s.source || u.size() != s.size()) continue;
      for (size_t i = 0; i < s.size(); ++i) {
        AddWindow(s.value[i], u.value[i], state);
      }
      break;
    }
  }
  for (const SignalSeries& s : FindSignal(t, Signal::kPreemptions)) {
    state.counts_preemptions = true;
    state.preemptions += std::max(0.0, Growth(s));
  }
  for (const SignalSeries& s : FindSignal(t, Signal::kPrefixQueries)) state.queries += Growth(s);
  for (const SignalSeries& s : FindSignal(t, Signal::kPrefixHits)) state.hits += Growth(s);
  for (const SignalSeries& s : FindSignal(t, Signal::kGenerated)) {
    if (s.size() < 2 || s.t_ns.back() <= s.t_ns.front()) continue;
    const double seconds = static_cast<double>(s.t_ns.back() - s.t_ns.front()) / 1e9;
    state.decode_rate.Add(Growth(s) / seconds);
  }
}

class Observer {
 public:
  explicit Observer(const Timeline& timeline) : t_(timeline) {}

  std::vector<Observation> Run() {
    Server();
    Startup();
    Requests();
    Latencies();
    Communication();
    Accesses();
    CpuSamples();
    ProfiledKernels();
    GpuActivity();
    Cpu();
    Numa();
    Events();
    return std::move(out_);
  }

 private:
  void Add(std::string_view id, Text text, double value, std::string_view unit,
           bool alarming = false) {
    out_.push_back({id, std::move(text), value, unit, alarming});
  }

  void Server() {
    ServerState s;
    AddLog(t_, s);
    AddMetrics(t_, s);
    if (s.running.n > 0) {
      Add("requests",
          {"observe.requests",
           {{"mean", Number(s.running.mean())},
            {"max", Number(s.running.max)},
            {"waiting", s.waiting.n > 0 ? Number(s.waiting.max) : "?"}}},
          s.running.max, "requests");
    }
    if (s.kv_usage.n > 0) {
      Add("kv-usage",
          {"observe.kv_usage",
           {{"mean", Percent(s.kv_usage.mean())}, {"max", Percent(s.kv_usage.max)}}},
          s.kv_usage.max, "share", s.kv_usage.max > kFullCache);
    }
    if (s.windows > 0 && s.pressed > 0) {
      Add("queue-pressure",
          {"observe.queue_pressure",
           {{"n", std::to_string(s.pressed)}, {"of", std::to_string(s.windows)}}},
          static_cast<double>(s.pressed) / static_cast<double>(s.windows), "share", true);
    }
    // Some requests always wait a moment: a tenth of the windows says something, and so do more
    // than ever ran.
    if (s.held_back.n > 0 && (s.held_back.n * 10 > s.windows || s.held_back.max > s.running.max)) {
      // More than run is a limit that binds.
      const bool binds = s.running.n > 0 && s.held_back.mean() > s.running.mean();
      Add("queue-with-room",
          {"observe.queue_with_room",
           {{"n", std::to_string(s.held_back.n)},
            {"of", std::to_string(s.windows)},
            {"waiting", Number(s.held_back.max)},
            {"usage", Percent(s.room_usage.max)}}},
          s.held_back.max, "requests", binds);
    }
    if (s.counts_preemptions) {
      Add("preemptions", {"observe.preemptions", {{"n", Number(s.preemptions)}}}, s.preemptions,
          "count", s.preemptions > 0);
    }
    if (s.batches > 0) {
      const double share = static_cast<double>(s.eager) / static_cast<double>(s.batches);
      Add("graph-misses",
          {"observe.graph_misses",
           {{"n", std::to_string(s.eager)}, {"of", std::to_string(s.batches)}}},
          share, "share", share > 0.05);
    }
    if (s.queries > 0) {
      Add("prefix-hit-rate",
          {"observe.hit_rate", {{"rate", Percent(s.hits / s.queries)}, {"n", Number(s.queries)}}},
          s.hits / s.queries, "share");
    } else if (s.hit_rate.n > 0) {
      Add("prefix-hit-rate",
          {"observe.hit_rate_log",
           {{"rate", Percent(s.hit_rate.mean())}, {"n", std::to_string(s.hit_rate.n)}}},
          s.hit_rate.mean(), "share");
    }
    if (s.accept_length.n > 0 || s.accept_rate.n > 0) {
      Add("speculation",
          {"observe.speculation",
           {{"length", s.accept_length.n > 0 ? Number(s.accept_length.mean()) : "?"},
            {"rate", s.accept_rate.n > 0 ? Percent(s.accept_rate.mean()) : "?"}}},
          s.accept_length.n > 0 ? s.accept_length.mean() : s.accept_rate.mean(),
          s.accept_length.n > 0 ? "tokens a step" : "share");
    }
    if (s.decode_rate.n > 0) {
      Add("generation",
          {"observe.generation",
           {{"mean", Number(s.decode_rate.mean())}, {"max", Number(s.decode_rate.max)}}},
          s.decode_rate.mean(), "tokens/s");
    }
  }

  void Startup() {
    Gauge capacity, capture_s, capture_bytes, compile_s;
    for (const LogLine& line : t_.log_lines) {
      const auto add = [&](LogField field, Gauge& gauge) {
        if (const auto value = t_.Value(line, field)) gauge.Add(*value);
      };
      add(LogField::kKvCapacityTokens, capacity);
      add(LogField::kGraphCaptureS, capture_s);
      add(LogField::kGraphCaptureBytes, capture_bytes);
      add(LogField::kCompileS, compile_s);
    }
    if (capacity.n > 0) {
      Add("kv-capacity", {"observe.kv_capacity", {{"tokens", Number(capacity.max)}}}, capacity.max,
          "tokens");
    }
    if (capture_s.n > 0) {
      const std::string bytes =
          capture_bytes.n > 0 ? HumanBytes(static_cast<uint64_t>(capture_bytes.max)) : "?";
      Add("graph-capture",
          {"observe.graph_capture", {{"s", Number(capture_s.max)}, {"bytes", bytes}}},
          capture_s.max, "s");
    }
    if (compile_s.n > 0) {
      Add("compile", {"observe.compile", {{"s", Number(compile_s.max)}}}, compile_s.max, "s");
    }
  }

  // Requests that were recorded one by one (OTLP spans, a server's own ledger).
  void Requests() {
    if (t_.requests.empty()) return;
    const auto median = [&](double Request::*field) {
      std::vector<double> values;
      for (const Request& r : t_.requests) {
        if (!std::isnan(r.*field)) values.push_back(r.*field);
      }
      if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
      const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
      std::nth_element(values.begin(), middle, values.end());
      return *middle;
    };
    const auto time = [](double s) { return Duration(s * 1e9); };
    const double ttft = median(&Request::ttft_s);
    const double queue = median(&Request::queue_s);
    Add("request-records",
        {"observe.request_records",
         {{"n", std::to_string(t_.requests.size())},
          {"ttft", time(ttft)},
          {"queue", time(queue)},
          {"prefill", time(median(&Request::prefill_s))},
          {"decode", time(median(&Request::decode_s))},
          {"e2e", time(median(&Request::e2e_s))}}},
        ttft, "s", queue > 0.5 * ttft);
  }

  // What NCCL's log says: how ranks are connected, and what they exchange.
  void Communication() {
    std::map<std::string_view, size_t> channels;
    for (const Transport& transport : t_.transports) ++channels[t_.Name(transport.via)];
    std::string list;
    for (const auto& [via, n] : channels) {
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", n, via);
    }
    if (!channels.empty()) {
      Add("transports", {"observe.transports", {{"list", list}}},
          static_cast<double>(t_.transports.size()), "channels");
    }
    struct Calls {
      size_t n = 0;
      uint64_t bytes = 0;
    };
    std::map<std::string_view, Calls> calls;
    for (const CollectiveCall& call : t_.collective_calls) {
      Calls& of_name = calls[t_.Name(call.name)];
      ++of_name.n;
      of_name.bytes += call.bytes;
    }
    for (const auto& [name, of_name] : calls) {
      Add("collective-calls",
          {"observe.collective_calls",
           {{"name", std::string(name)},
            {"n", std::to_string(of_name.n)},
            {"each", HumanBytes(of_name.bytes / of_name.n)},
            {"bytes", HumanBytes(of_name.bytes)}}},
          static_cast<double>(of_name.bytes), "bytes");
    }
  }

  // Memory accesses that were recorded one by one.
  void Accesses() {
    std::vector<int64_t> latency_ns;
    for (const AccessEvent& access : t_.access_events) {
      if (access.latency_ns >= 0) latency_ns.push_back(access.latency_ns);
    }
    if (latency_ns.empty()) return;
    std::sort(latency_ns.begin(), latency_ns.end());
    const int64_t p50 = latency_ns[latency_ns.size() / 2];
    const int64_t p99 = latency_ns[latency_ns.size() * 99 / 100];
    Add("accesses",
        {"observe.accesses",
         {{"n", std::to_string(t_.access_events.size())},
          {"p50", Duration(p50)},
          {"p99", Duration(p99)}}},
        static_cast<double>(p99) / 1e9, "s");
  }

  // Where sampled stacks end: what the CPUs ran, or touched memory from.
  void CpuSamples() {
    if (t_.stack_samples.empty()) return;
    std::map<StringId, double> commands;
    std::map<StringId, double> symbols;
    double all = 0;
    for (const StackSample& sample : t_.stack_samples) {
      const auto weight = static_cast<double>(sample.period);
      all += weight;
      commands[sample.command] += weight;
      if (sample.stack != kNone) symbols[t_.stack_nodes[sample.stack].symbol] += weight;
    }
    const auto by_weight = [](const auto& a, const auto& b) { return a.second < b.second; };
    const StringId command = std::max_element(commands.begin(), commands.end(), by_weight)->first;
    std::string list;
    for (size_t i = 0; i < kShownNames && !symbols.empty(); ++i) {
      const auto top = std::max_element(symbols.begin(), symbols.end(), by_weight);
      list += fmt::format("{}{} {}", i > 0 ? ", " : "", t_.Name(top->first),
                          Percent(top->second / all));
      symbols.erase(top);
    }
    Add("cpu-samples",
        {"observe.cpu_samples",
         {{"n", std::to_string(t_.stack_samples.size())},
          {"command", std::string(t_.Name(command))},
          {"symbols", list}}},
        static_cast<double>(t_.stack_samples.size()), "samples");
  }

  // What Nsight Compute replayed, longest first.
  void ProfiledKernels() {
    std::vector<std::pair<double, const ProfiledKernel*>> by_time;
    double total = 0;
    const auto metric = [&](const ProfiledKernel& kernel,
                            std::initializer_list<std::string_view> names) {
      std::optional<double> value;
      for (auto name = names.begin(); !value && name != names.end(); ++name) {
        value = t_.Metric(kernel, *name);
      }
      return value;
    };
    for (const ProfiledKernel& kernel : t_.profiled_kernels) {
      const double ns = metric(kernel, {"gpu__time_duration.sum", "Duration"}).value_or(0);
      total += ns;
      by_time.emplace_back(ns, &kernel);
    }
    if (total <= 0) return;
    std::stable_sort(by_time.begin(), by_time.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string list;
    for (size_t i = 0; i < std::min(kShownNames, by_time.size()); ++i) {
      const auto& [ns, kernel] = by_time[i];
      std::string name(t_.Name(kernel->name));
      if (name.size() > kShownNameBytes) name = name.substr(0, kShownNameBytes - 3) + "...";
      list += fmt::format("{}{} {}", i > 0 ? "; " : "", name, Duration(ns));
      const auto sm = metric(
          *kernel, {"sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"});
      const auto dram = metric(
          *kernel, {"dram__throughput.avg.pct_of_peak_sustained_elapsed",
                    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput"});
      if (sm && dram) {
        list += fmt::format(" (SM {}, DRAM {})", Percent(*sm / 100), Percent(*dram / 100));
      }
    }
    Add("profiled-kernels",
        {"observe.profiled_kernels",
         {{"n", std::to_string(by_time.size())}, {"total", Duration(total)}, {"list", list}}},
        total / 1e9, "s");
  }

  // Latency histograms of the server: buckets of all label sets add up.
  void Latencies() {
    constexpr std::string_view kWanted[] = {
        "time_to_first_token_seconds", "inter_token_latency_seconds",
        "time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        // OpenTelemetry's names, as OTLP writes them and as Prometheus does.
        "gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token",
        "gen_ai.server.request.duration", "gen_ai_server_time_to_first_token",
        "gen_ai_server_time_per_output_token", "gen_ai_server_request_duration"};
    struct Ends {
      double first = 0, last = 0;
      size_t n = 0;
    };
    std::map<uint32_t, Ends> ends;
    std::map<uint32_t, std::pair<StringId, double>> wanted;  // series -> histogram, upper bound
    for (uint32_t i = 0; i < t_.series.size(); ++i) {
      const Series& series = t_.series[i];
      if (series.kind != SeriesKind::kHistogramBucket) continue;
      const std::string_view name = t_.Name(series.name);
      const bool is_latency =
          std::any_of(std::begin(kWanted), std::end(kWanted),
                      [&](std::string_view w) { return name.find(w) != std::string_view::npos; });
      const auto labels = is_latency ? SplitBucketLabels(t_.Name(series.labels)) : std::nullopt;
      if (labels) wanted[i] = {series.name, labels->bound};
    }
    if (wanted.empty()) return;
    for (size_t i = 0; i < t_.samples.size(); ++i) {
      if (!wanted.contains(t_.samples.series[i])) continue;
      Ends& e = ends[t_.samples.series[i]];
      if (e.n++ == 0) e.first = t_.samples.value[i];
      e.last = t_.samples.value[i];
    }
    std::map<StringId, std::map<double, double>> histograms;
    for (const auto& [series, e] : ends) {
      const auto& [name, bound] = wanted[series];
      histograms[name][bound] += e.n >= 2 && e.last >= e.first ? e.last - e.first : e.last;
    }
    for (const auto& [name, buckets] : histograms) {
      const std::vector<std::pair<double, double>> cumulative(buckets.begin(), buckets.end());
      if (cumulative.back().second <= 0) continue;
      const HistogramQuantile p50 = QuantileOf(cumulative, 0.5);
      const HistogramQuantile p99 = QuantileOf(cumulative, 0.99);
      std::string title(t_.Name(name));
      title.resize(title.size() - std::string_view("_bucket").size());
      Add("latency",
          {"observe.latency",
           {{"name", title},
            {"p50", Range(p50)},
            {"p99", Range(p99)},
            {"n", Number(cumulative.back().second)}}},
          p99.up_to, "s");
    }
  }

  static std::string Range(const HistogramQuantile& q) {
    if (std::isinf(q.up_to)) return "> " + Duration(q.above * 1e9);
    return Duration(q.above * 1e9) + " .. " + Duration(q.up_to * 1e9);
  }

  // One line a GPU: the best-defined source of each signal.
  void GpuActivity() {
    std::map<int32_t, std::map<Signal, double>> gpus;
    for (const Signal signal :
         {Signal::kGpuBusy, Signal::kSmActive, Signal::kDramActive, Signal::kPcieRx}) {
      for (const SignalSeries& s : FindSignal(t_, signal)) {
        gpus[s.device].try_emplace(signal, s.Mean());
      }
    }
    for (const auto& [gpu, by_signal] : gpus) {
      const std::map<Signal, double>& means = by_signal;  // clang 14 captures no bindings
      const auto share = [&](Signal signal) {
        const auto it = means.find(signal);
        return it == means.end() ? "?" : Percent(it->second);
      };
      const auto pcie = means.find(Signal::kPcieRx);
      const bool sm = means.contains(Signal::kSmActive);
      Add("gpu-activity",
          {pcie == means.end() ? "observe.gpu_without_pcie" : "observe.gpu",
           {{"gpu", std::to_string(gpu)},
            {"busy", share(sm ? Signal::kSmActive : Signal::kGpuBusy)},
            {"memory", share(Signal::kDramActive)},
            {"pcie", pcie == means.end() ? "" : Number(pcie->second / 1e9)}}},
          means.contains(Signal::kGpuBusy) ? means.at(Signal::kGpuBusy)
                                           : std::numeric_limits<double>::quiet_NaN(),
          "share");
    }
  }

  // Readings of the live sampler, by its own names (event/sample.h); NaN when there are none.
  double MeanOf(event::Metric metric) const {
    const StringId name = t_.strings.Find(event::NameOf(metric));
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; name != 0 && i < t_.samples.size(); ++i) {
      if (t_.series[t_.samples.series[i]].name != name) continue;
      sum += t_.samples.value[i];
      ++n;
    }
    return n > 0 ? sum / static_cast<double>(n) : std::numeric_limits<double>::quiet_NaN();
  }

  void Cpu() {
    const double busy = MeanOf(event::Metric::kCpuBusy);
    if (!std::isnan(busy)) {
      const double steal = MeanOf(event::Metric::kCpuSteal);
      Add("cpu",
          {"observe.cpu",
           {{"busy", Percent(busy)},
            {"steal", Percent(steal)},
            {"waiting", Number(MeanOf(event::Metric::kRunnableThreads))}}},
          busy, "share", steal > kMuchSteal);
    }
    const double cpus = MeanOf(event::Metric::kProcessCpu);
    if (!std::isnan(cpus)) {
      const double resident = MeanOf(event::Metric::kProcessResident);
      Add("process",
          {"observe.process",
           {{"cpus", Number(cpus)},
            {"resident", std::isnan(resident) ? "?" : HumanBytes(static_cast<uint64_t>(resident))},
            {"switches", Number(MeanOf(event::Metric::kProcessInvoluntarySwitches))}}},
          cpus, "CPUs");
    }
  }

  void Numa() {
    double pages = 0;
    const std::vector<SignalSeries> nodes = FindSignal(t_, Signal::kNumaRemote);
    for (const SignalSeries& s : nodes) pages += s.Mean();
    if (!nodes.empty()) {
      Add("numa-pages", {"observe.numa_pages", {{"pages", Number(pages)}}}, pages, "1/s");
    }
    for (const GpuThreads& threads : FindGpuThreads(t_)) {
      Add("gpu-threads",
          {"observe.gpu_threads",
           {{"gpu", std::to_string(threads.gpu)},
            {"node", std::to_string(threads.node)},
            {"near", Number(threads.near)},
            {"of", Number(threads.readings())}}},
          threads.near / threads.readings(), "share");
    }
  }

  void Events() {
    std::map<StringId, size_t> counts;
    for (const LogLine& line : t_.log_lines) {
      if (line.kind == LogKind::kEvent && line.text != 0) ++counts[line.text];
    }
    for (const auto& [text, n] : counts) {
      Add("log-event",
          {"observe.event", {{"n", std::to_string(n)}, {"text", std::string(t_.Name(text))}}},
          static_cast<double>(n), "count", t_.Name(text).find("Abort") == std::string_view::npos);
    }
  }

  const Timeline& t_;
  std::vector<Observation> out_;
};

}  // namespace

std::vector<Observation> Observe(const Timeline& timeline) { return Observer(timeline).Run(); }

}  // namespace fathom::diagnose
