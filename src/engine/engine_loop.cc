// The engine's thread: what arrives, one step after the other, what they yield.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_impl.h"

namespace fathom::engine {
namespace {

SamplingNeeds NeedsOf(const Sampler& sampler) {
  return {.occurrences = sampler.max_occurrences(),
          .biases = sampler.biases().size(),
          .mask_rows = sampler.constraint() != nullptr ? 1U : 0U};
}

}  // namespace

void EngineImpl::Loop() {
  while (TakeInbox()) {
    for (std::unique_ptr<Sequence>& sequence : taken_) Accept(std::move(sequence));
    for (const RequestId id : taken_cancels_) {
      const auto it = sequences_.find(id);
      if (it == sequences_.end() || it->second->state == Sequence::State::kEnded) continue;
      scheduler_.End(*it->second);
      Finish(*it->second, FinishReason::kCancelled, nullptr);
    }
    ScheduleStep();
    PublishStats();
    Retire();
  }
}

bool EngineImpl::TakeInbox() {
  taken_.clear();
  taken_cancels_.clear();
  std::unique_lock lock(mutex_);
  slept_ |= sequences_.empty();
  wake_.wait(lock, [this] {
    return !sequences_.empty() || !inbox_.empty() || !cancels_.empty() || stop_;
  });
  taken_.swap(inbox_);
  taken_cancels_.swap(cancels_);
  if (cancel_all_) taken_cancels_.assign(live_.begin(), live_.end());
  stats_.waiting += static_cast<int32_t>(taken_.size());
  return !(stop_ && sequences_.empty() && taken_.empty());
}

EngineImpl::ThreadTime EngineImpl::ReadThreadTime() const {
  const bool works_here = runtime_.device.kind() == ops::DeviceKind::kCpu;
  // In this order: a thread likes to lose its CPU on its way out of the system call.
  const int64_t cpu_ns = works_here && runtime_.sink.enabled() ? ThreadCpuNs() : 0;
  return {.wall_ns = NowNs(), .cpu_ns = cpu_ns};
}

// Between two steps, when it is worth an event. Sleep for want of work is no wait.
void EngineImpl::EmitOffCpu(uint64_t step_id) {
  constexpr int64_t kWorthNs = 20'000;
  const int64_t off_ns = OffCpuNs(ended_, launched_);
  if (std::exchange(slept_, false) || off_ns < kWorthNs) return;
  runtime_.sink.Emit({.start_ns = ended_.wall_ns,
                      .duration_ns = launched_.wall_ns - ended_.wall_ns,
                      .step_id = step_id,
                      .value = static_cast<uint64_t>(off_ns),
                      .kind = event::Kind::kWaitForCpu});
}

void EngineImpl::Accept(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  needs_ += NeedsOf(s.sampler);
  Status status;
  if (!static_rope_ || buffers_.WouldGrow(needs_)) {
    while (!in_flight_.empty()) CompleteOldest();
    status = buffers_.Reserve(needs_);
  }
  model::RopeChoice rope;
  if (static_rope_) {
    rope = *static_rope_;
  } else if (auto chosen = model_.ChooseRope(s.max_total)) {
    rope = *chosen;
  } else {
    status = tl::unexpected(std::move(chosen.error()));
  }
  if (!counters_.healthy) status = Err(Code::kUnavailable, "the model failed");
  s.rope_row = rope.row;
  s.path = cache_.OpenPath(rope.key, s.spec.tenant, s.spec.prompt, s.max_total);
  sequences_.emplace(s.spec.id, std::move(sequence));
  scheduler_.Add(s, NowNs());
  if (status) return;
  scheduler_.End(s);
  Finish(s, FinishReason::kError, &status.error());
}

void EngineImpl::ScheduleStep() {
  if (in_flight_.size() < depth_) {
    InFlight step = std::move(idle_steps_.back());
    idle_steps_.pop_back();
    const int64_t begin_ns = NowNs();
    scheduler_.Schedule(begin_ns, step.batch, transitions_);
    event::Event event;
    event.kind = event::Kind::kSchedule;
    event.step_id = step.batch.step_id;
    event.start_ns = begin_ns;
    event.duration_ns = NowNs() - begin_ns;
    event.value = step.batch.entries.size();
    if (!step.batch.entries.empty()) runtime_.sink.Emit(event);
    for (Sequence* s : transitions_.expired) Finish(*s, FinishReason::kDeadline, nullptr);
    for (const auto& [sequence, tokens] : transitions_.preempted) {
      Emit(event::Kind::kPreempted, *sequence, 0, static_cast<uint64_t>(tokens));
    }
    for (const Sequence* s : transitions_.admitted) {
      Emit(event::Kind::kScheduled, *s, step.batch.step_id, 0);
    }
    PublishStats();  // a step may take long
    if (!step.batch.entries.empty()) {
      if (const Status status = Launch(step); !status) {
        in_flight_.push_back(std::move(step));
        Fail(status.error());
        return;
      }
      in_flight_.push_back(std::move(step));
      if (in_flight_.size() < depth_) return;  // one more before the first result is waited for
    } else {
      idle_steps_.push_back(std::move(step));
    }
  }
  if (!in_flight_.empty()) {
    CompleteOldest();
    return;
  }
  FATHOM_CHECK(scheduler_.num_running() + scheduler_.num_waiting() == 0,
               "{} running and {} waiting requests, but no step and none in flight",
               scheduler_.num_running(), scheduler_.num_waiting());
}

Status EngineImpl::Launch(InFlight& step) {
  launched_ = ReadThreadTime();
  step.start_ns = launched_.wall_ns;
  EmitOffCpu(step.batch.step_id);
  const Batch& batch = step.batch;
  for (const BatchEntry& entry : batch.entries) {
    const bool prompt = entry.role == ops::Role::kPrompt;
    Emit(event::Kind::kStepSequence, *entry.sequence, batch.step_id,
         static_cast<uint64_t>(entry.count), prompt ? event::kPromptRole : event::kGeneratedRole,
         static_cast<uint64_t>(entry.first_position));
  }
  const ops::StreamId stream = ops::kDefaultStream;
  ops::Context context{.device = runtime_.device,
                       .pool = runtime_.pool,
                       .cpu = runtime_.cpu,
                       .comm = runtime_.comm,
                       .arena = arena_,
                       .sink = runtime_.sink,
                       .step_id = batch.step_id,
                       .stream = stream};
  StepBuffers::Step built = [&] {
    const auto span = context.Mark(event::Op::kCopy, -1);
    return buffers_.Build(batch, stream);
  }();
  const ops::StepBucket& bucket = built.inputs.bucket;
  TensorView logits = TensorView::Contiguous(logits_.data(), DType::kF32,
                                             {bucket.num_logits, setup_.limits.vocab_size});
  arena_.Release(0);
  const model::StepPlan plan = model_.Plan(bucket);
  FATHOM_TRY(model_.Forward(plan, built.inputs, caches_, context, logits));
  if (bucket.num_logits > 0) {
    arena_.Release(0);
    built.sampling.logits = logits;
    FATHOM_TRY(ops::sample::Run(built.sampling, context));
    buffers_.CopyChoices(built, step.choices, stream);
  }
  step.fence = runtime_.device.Record(stream);
  return {};
}

void EngineImpl::CompleteOldest() {
  InFlight& step = in_flight_.front();
  if (const Status status = runtime_.device.Wait(step.fence); !status) {
    Fail(status.error());
    return;
  }
  ended_ = ReadThreadTime();
  const int64_t now_ns = ended_.wall_ns;
  const Batch& batch = step.batch;
  event::Event event;
  event.kind = event::Kind::kStep;
  event.step_id = batch.step_id;
  event.start_ns = std::max(step.start_ns, last_step_end_ns_);
  event.duration_ns = now_ns - event.start_ns;
  event.value = static_cast<uint64_t>(batch.num_tokens);
  event.aux = static_cast<uint64_t>(batch.num_prompt_tokens);
  const int64_t off_cpu_us = OffCpuNs(launched_, ended_) / 1000;
  event.off_cpu_us = static_cast<uint32_t>(std::min<int64_t>(off_cpu_us, UINT32_MAX));
  runtime_.sink.Emit(event);
  last_step_end_ns_ = now_ns;
  ++counters_.steps;

  size_t row = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    Yield& yield = step.yields[i];
    yield.choice = batch.entries[i].needs_logits ? &step.choices[row++] : nullptr;
    yield.outcome = TakeIn(batch.entries[i], yield.choice, batch.step_id);
  }
  event = {.start_ns = now_ns, .step_id = batch.step_id, .value = batch.entries.size()};
  event.kind = event::Kind::kSchedule;
  event.duration_ns = NowNs() - now_ns;
  runtime_.sink.Emit(event);
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    Deliver(*batch.entries[i].sequence, step.yields[i], now_ns);
  }
  scheduler_.Complete(batch.step_id);
  idle_steps_.push_back(std::move(step));
  in_flight_.erase(in_flight_.begin());
}

Scheduler::Outcome EngineImpl::TakeIn(const BatchEntry& entry, const ops::sample::Choice* choice,
                                      uint64_t step_id) {
  Sequence& sequence = *entry.sequence;
  if (choice == nullptr || choice->token < 0) return scheduler_.Apply(entry, {});
  const Scheduler::Outcome outcome = scheduler_.Apply(entry, {&choice->token, 1});
  if (outcome.count == 0) return outcome;  // it has ended meanwhile
  ++counters_.generated_tokens;
  if (outcome.first == sequence.num_prompt) {
    counters_.prompt_tokens += static_cast<uint64_t>(sequence.num_prompt);
  }
  sequence.sampler.Commit(choice->token);
  Emit(event::Kind::kToken, sequence, step_id,
       static_cast<uint64_t>(outcome.first - sequence.num_prompt));
  return outcome;
}

void EngineImpl::Deliver(Sequence& sequence, const Yield& yield, int64_t now_ns) {
  const ops::sample::Choice* choice = yield.choice;
  if (choice == nullptr) return;
  if (choice->token < 0) {
    if (sequence.state == Sequence::State::kEnded) return;
    const Error error = choice->token == ops::sample::Choice::kAllMasked
                            ? Error{Code::kInternal, "the grammar allows no token here"}
                            : Error{Code::kInternal, "the model's logits hold NaN or infinity"};
    scheduler_.End(sequence);
    Finish(sequence, FinishReason::kError, &error);
    return;
  }
  if (yield.outcome.count == 0) return;
  TokenOutput output{.token = choice->token, .logprob = choice->logprob, .time_ns = now_ns};
  for (int32_t i = 0; i < choice->num_top; ++i) {
    output.top.push_back({.token = choice->top_tokens[i], .logprob = choice->top_logprobs[i]});
  }
  const bool wants_more = sequence.listener->OnTokens({&output, 1});
  if (yield.outcome.finish) {
    Finish(sequence, wants_more ? *yield.outcome.finish : FinishReason::kStop, nullptr);
  } else if (!wants_more) {
    scheduler_.End(sequence);
    Finish(sequence, FinishReason::kStop, nullptr);
  }
}

void EngineImpl::Finish(Sequence& sequence, FinishReason reason, const Error* error) {
  const Usage usage{.prompt_tokens = sequence.num_prompt,
                    .cached_prompt_tokens = sequence.cached_prompt_tokens,
                    .generated_tokens = sequence.num_generated()};
  Emit(event::Kind::kFinished, sequence, 0, static_cast<uint64_t>(usage.generated_tokens),
       static_cast<uint16_t>(reason));
  sequence.listener->OnFinish(reason, usage, error);
  sequence.listener.reset();
}

void EngineImpl::Fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    stats_.healthy = false;
  }
  counters_.healthy = false;
  const Error cause = error;
  for (auto& [id, sequence] : sequences_) {
    if (sequence->state == Sequence::State::kEnded) continue;
    scheduler_.End(*sequence);
    Finish(*sequence, FinishReason::kError, &cause);
  }
  // What is enqueued may still write to our memory; how it ends does not matter any more.
  (void)runtime_.device.Wait(runtime_.device.Record(ops::kDefaultStream));
  while (!in_flight_.empty()) {
    InFlight& step = in_flight_.front();
    for (const BatchEntry& entry : step.batch.entries) scheduler_.Apply(entry, {});
    scheduler_.Complete(step.batch.step_id);
    idle_steps_.push_back(std::move(step));
    in_flight_.erase(in_flight_.begin());
  }
}

void EngineImpl::Retire() {
  if (scheduler_.retired().empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (const Sequence* sequence : scheduler_.retired()) live_.erase(sequence->spec.id);
  }
  drained_.notify_all();
  for (const Sequence* sequence : scheduler_.retired()) {
    needs_ -= NeedsOf(sequence->sampler);
    sequences_.erase(sequence->spec.id);
  }
  scheduler_.retired().clear();
}

void EngineImpl::PublishStats() {
  EngineStats stats = counters_;
  stats.running = scheduler_.num_running();
  stats.waiting = scheduler_.num_waiting();
  stats.pages_total = pool_.total();
  stats.pages_free = pool_.free();
  stats.pages_cached = pool_.cached();
  stats.prefix_queries_tokens = cache_.query_tokens();
  stats.prefix_hits_tokens = cache_.hit_tokens();
  stats.preemptions = scheduler_.preemptions();
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

void EngineImpl::Emit(event::Kind kind, const Sequence& sequence, uint64_t step_id, uint64_t value,
                      uint16_t flags, uint64_t aux) const {
  if (runtime_.sink.enabled()) EmitAt(NowNs(), kind, sequence, step_id, value, flags, aux);
}

void EngineImpl::EmitAt(int64_t start_ns, event::Kind kind, const Sequence& sequence,
                        uint64_t step_id, uint64_t value, uint16_t flags, uint64_t aux) const {
  if (!runtime_.sink.enabled()) return;
  event::Event event;
  event.kind = kind;
  event.request_id = sequence.spec.id;
  event.step_id = step_id;
  event.start_ns = start_ns;
  event.value = value;
  event.aux = aux;
  event.flags = flags;
  runtime_.sink.Emit(event);
}

}  // namespace fathom::engine
