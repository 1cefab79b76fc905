#pragma once
// Continuous batching over one model: requests in from any thread, tokens out on the engine's own
// thread. The scheduler (scheduler.h) is pure; this class feeds it, runs its batches on the device
// and applies what they yield.
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/request.h"
#include "event/ring.h"
#include "model/model.h"

namespace fathom::engine {

struct EngineOptions {
  int32_t max_running = 256;                 // sequences in a step at most
  int32_t max_queue = 4096;                  // waiting requests; one more is refused
  int32_t token_budget = 512;                // tokens of one step, prompt and generated
  int32_t max_prompt_tokens_per_step = 256;  // of it, for prompts while others generate
  int64_t num_pages = 0;                     // of the KV pool (memory_plan.h says how many fit)
  int32_t max_context_tokens = 0;            // 0: the model's
  bool prefix_cache = true;
  // Also give prompts the pages that hold generated tokens. The decode path computed those, so an
  // answer over them may differ in rounding from one computed cold; off, only prompt pages are
  // shared and the cache never changes a bit.
  bool reuse_generated_pages = false;
  // A request with one level of priority more goes before those that arrived up to this much
  // earlier; so a lower priority waits, but never for ever.
  int32_t priority_step_ms = 10'000;
  uint64_t default_seed = 0;  // for requests without one: mixed with their id
  int32_t bos_token = -1;     // to explain prefix-cache misses by a missing or doubled BOS
};

struct EngineStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_cached = 0;  // held only by the prefix cache: free + cached + used = total
  uint64_t prefix_queries_tokens = 0;
  uint64_t prefix_hits_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t steps = 0;
  bool healthy = true;
};

// Device memory besides the weights.
struct EngineMemory {
  uint64_t kv_bytes = 0;         // of all pages
  uint64_t workspace_bytes = 0;  // activations of the largest step
  uint64_t logits_bytes = 0;
  uint64_t inputs_bytes = 0;
};

class Engine {
 public:
  struct Runtime {
    ops::Device& device;
    ThreadPool& pool;
    const kernels::cpu::KernelTable& cpu;
    ops::Comm& comm;
    event::Sink sink;
  };

  // What Create will allocate. Fails as Create does when an option is out of range.
  static Result<EngineMemory> PlanMemory(const model::Model& model, const EngineOptions& options,
                                         int num_threads);
  static Result<std::unique_ptr<Engine>> Create(model::Model& model, const EngineOptions& options,
                                                const Runtime& runtime);
  virtual ~Engine() = default;

  struct Submission {
    RequestSpec spec;
    std::shared_ptr<RequestListener> listener;
  };
  // Any thread. Takes all or none: refuses what can never run (empty prompt, longer than the
  // context or the pool, parameters out of range) and what should not wait (queue full, draining).
  virtual Status SubmitAll(std::vector<Submission> submissions) = 0;
  Status Submit(RequestSpec spec, std::shared_ptr<RequestListener> listener);
  // Any thread; a request that has ended already is ignored.
  virtual void Cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  // What a prompt and its answer may have together: the option, the model's context or what the
  // page pool holds, whichever is least.
  virtual int32_t max_context_tokens() const = 0;

  // Refuses new requests, lets the admitted ones end until the deadline, then cancels the rest.
  virtual void Drain(int64_t deadline_ns) = 0;
};

}  // namespace fathom::engine
