#pragma once
// The engine behind engine.h. One thread owns everything but the members under mutex_.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "engine/page_pool.h"
#include "engine/prefix_cache.h"
#include "engine/scheduler.h"
#include "engine/step.h"

namespace fathom::engine {

class EngineImpl final : public Engine {
 public:
  // Checked by Engine::Create.
  struct Setup {
    int32_t page_tokens = 0;
    int32_t max_context_tokens = 0;
    StepLimits limits;
    CacheVersion version;
    size_t arena_bytes = 0;
  };

  EngineImpl(model::Model& model, const EngineOptions& options, const Runtime& runtime,
             const Setup& setup);
  ~EngineImpl() override;
  Status Initialise();  // memory, then the thread

  Status SubmitAll(std::vector<Submission> submissions) override;
  void Cancel(RequestId id) override;
  EngineStats stats() const override;
  int32_t max_context_tokens() const override { return setup_.max_context_tokens; }
  void Drain(int64_t deadline_ns) override;

 private:
  struct Yield {                                  // of one sequence in one step
    const ops::sample::Choice* choice = nullptr;  // null: its prompt goes on
    Scheduler::Outcome outcome;
  };
  struct InFlight {
    Batch batch;
    std::vector<Yield> yields;                 // [batch.entries]
    std::vector<ops::sample::Choice> choices;  // host copy, complete once the fence has passed
    ops::Fence fence;
    int64_t start_ns = 0;
  };

  struct ThreadTime {
    int64_t wall_ns = 0;
    int64_t cpu_ns = 0;  // that the engine's thread had run by then; 0: a device does the work
  };
  static int64_t OffCpuNs(const ThreadTime& from, const ThreadTime& to) {
    if (to.cpu_ns == 0) return 0;
    return std::max<int64_t>(0, (to.wall_ns - from.wall_ns) - (to.cpu_ns - from.cpu_ns));
  }

  Status Check(const RequestSpec& spec) const;
  void TouchMemory();  // what the first requests will use

  // The engine's thread.
  void Loop();
  bool TakeInbox();  // waits when there is nothing to do; false to stop
  ThreadTime ReadThreadTime() const;
  void EmitOffCpu(uint64_t step_id);
  void Accept(std::unique_ptr<Sequence> sequence);
  void ScheduleStep();
  Status Launch(InFlight& step);
  void CompleteOldest();
  // The scheduler and the sampler hear of a token before any client does.
  Scheduler::Outcome TakeIn(const BatchEntry& entry, const ops::sample::Choice* choice,
                            uint64_t step_id);
  void Deliver(Sequence& sequence, const Yield& yield, int64_t now_ns);
  void Finish(Sequence& sequence, FinishReason reason, const Error* error);
  void Fail(const Error& error);
  void Retire();
  void PublishStats();
  void Emit(event::Kind kind, const Sequence& sequence, uint64_t step_id, uint64_t value,
            uint16_t flags = 0, uint64_t aux = 0) const;
  void EmitAt(int64_t start_ns, event::Kind kind, const Sequence& sequence, uint64_t step_id,
              uint64_t value, uint16_t flags = 0, uint64_t aux = 0) const;

  model::Model& model_;
  const EngineOptions options_;
  const Runtime runtime_;
  const Setup setup_;
  const size_t depth_;  // steps in flight at most

  std::vector<ops::DeviceBuffer> kv_;
  std::vector<ops::CacheView> caches_;
  ops::DeviceBuffer workspace_;
  ops::DeviceBuffer logits_;
  Arena arena_;
  StepBuffers buffers_;
  std::optional<model::RopeChoice> static_rope_;

  PagePool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  SamplingNeeds needs_;  // of all of them
  Transitions transitions_;
  std::vector<InFlight> in_flight_;  // oldest first
  std::vector<InFlight> idle_steps_;
  int64_t last_step_end_ns_ = 0;
  ThreadTime launched_, ended_;  // of the last step
  bool slept_ = true;            // since it ended
  EngineStats counters_;         // those that only count up

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the engine's thread has something to do
  std::condition_variable drained_;  // a request has ended
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> cancels_;
  std::unordered_set<RequestId> live_;  // submitted and not ended
  EngineStats stats_;
  bool draining_ = false;
  bool cancel_all_ = false;
  bool stop_ = false;

  std::vector<std::unique_ptr<Sequence>> taken_;
  std::vector<RequestId> taken_cancels_;
  std::thread thread_;
};

}  // namespace fathom::engine
