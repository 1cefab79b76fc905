#pragma once
// Prometheus metrics. Every quantity is exported as `fathom:NAME`; with vllm_names also as
// `vllm:NAME` with the labels (model_name, engine) and the exact buckets of vLLM's V1 engine, so
// that existing dashboards and alerts keep working. docs/metrics.md lists them.
//
// Intervals: queue = queued -> latest scheduled before the first token; prefill = from there to the
// first token; decode = first -> last token; inference = prefill + decode; time to first token and
// end-to-end latency count from the arrival of the whole request, before tokenisation.
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "observe/attribution.h"
#include "observe/recorder.h"

namespace fathom::observe {

struct RequestLedger;

// What the engine counts itself (engine::EngineStats), read at each scrape.
struct EngineGauges {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_cached = 0;
  uint64_t prefix_queries_tokens = 0;
  uint64_t prefix_hits_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t steps = 0;
  bool healthy = true;
};

struct MetricsOptions {
  std::string model_name;
  int32_t max_context_tokens = 0;  // the last bucket of the token histograms
  bool vllm_names = false;
  std::map<std::string, std::string> cache_config;  // labels of cache_config_info
};

class Metrics : public Consumer {
 public:
  Metrics(MetricsOptions options, std::function<EngineGauges()> read_engine);
  ~Metrics() override;

  void Consume(std::span<const event::Event> events) override;
  void OnDropped(uint64_t count) override;

  // Any thread.
  void ObserveRequest(int32_t n, std::optional<int32_t> max_tokens);
  void ObserveHttp(std::string_view handler, std::string_view method, int status, double seconds);
  void ObserveLedger(const RequestLedger& ledger);

  // Text exposition format 0.0.4.
  std::string Render() const;

 private:
  // One quantity under both prefixes.
  struct Histogram {
    prometheus::Histogram* own = nullptr;
    std::vector<prometheus::Histogram*> compat;
    void Observe(double value) const;
  };
  struct RequestTimes {
    std::optional<int64_t> arrived_ns, queued_ns, scheduled_ns, first_ns;
    int64_t last_ns = 0;
    uint64_t tokens = 0;
    uint64_t prompt_tokens = 0;
  };
  struct StepOps {
    std::optional<size_t> phase;          // of kPhases, once kStep has arrived
    std::array<OpTimes, 2> pending_ns{};  // [ClockDomain][op], until then
  };

  using Buckets = prometheus::Histogram::BucketBoundaries;
  Histogram MakeHistogram(const std::string& name, const std::string& help, const Buckets& own,
                          const Buckets& vllm, const std::vector<std::string>& vllm_aliases = {});
  prometheus::Histogram* AddHistogram(const std::string& full_name, const std::string& help,
                                      const std::map<std::string, std::string>& labels,
                                      const Buckets& buckets);
  prometheus::Family<prometheus::Counter>* AddCounters(const std::string& full_name,
                                                       const std::string& help,
                                                       bool vllm_labels = false);
  void Apply(const event::Event& e);
  void OnStep(const event::Event& e);
  void OnOp(const event::Event& e);
  void AddOpTime(size_t phase, size_t clock, size_t op, int64_t ns);
  void OnToken(const event::Event& e);
  void OnFinished(const event::Event& e);
  void CountFinish(uint16_t reason, double count);
  prometheus::Counter& PartSeconds(size_t part);
  std::vector<prometheus::MetricFamily> EngineFamilies() const;

  const MetricsOptions options_;
  std::function<EngineGauges()> read_engine_;
  prometheus::Registry registry_;
  Histogram ttft_, itl_, tpot_, e2e_, queue_, prefill_, decode_, inference_;
  Histogram prompt_tokens_, generated_tokens_, iteration_tokens_, params_n_, params_max_tokens_;
  std::array<prometheus::Histogram*, 3> step_seconds_{};  // [phase]
  prometheus::Family<prometheus::Histogram>* http_seconds_;
  prometheus::Family<prometheus::Counter>* http_requests_;
  prometheus::Family<prometheus::Counter>*finished_, *finished_vllm_ = nullptr, *op_seconds_,
                                                     *part_seconds_, *cache_misses_;
  prometheus::Counter* dropped_;
  // Recorder's thread only.
  std::array<std::array<std::array<prometheus::Counter*, kNumOps>, 2>, 3>
      op_counters_{};  // [phase][clock][op], made at first use
  std::unordered_map<uint64_t, RequestTimes> requests_;
  std::map<uint64_t, StepOps> steps_;  // the newest few
};

}  // namespace fathom::observe
