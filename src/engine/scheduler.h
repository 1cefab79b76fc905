#pragma once
// Chooses what each step computes. Pure: no clock (time comes in), no device, no thread; the same
// calls give the same batches. Steps may be scheduled before the results of earlier ones arrive
// (depth >= 2): the next token of a sequence is then known to come, not which one it is.
//
// A step takes, within the token budget and in this order:
//   1. one token of every sequence that generates (plus draft tokens), oldest first;
//   2. chunks of prompts, and of generated tokens whose pages were lost, oldest first;
//   3. waiting sequences, oldest first, as far as slots and pages reach.
// "Oldest" is by Sequence::order = arrival - priority * priority_step: one level of priority counts
// as having arrived that much earlier, so a sequence is passed only by those that arrive within a
// bounded time after it, and none waits for ever.
//
// When a generating sequence finds no page, the youngest running sequence gives its pages back and
// waits again (preemption by recompute): its prompt is computed again as prompt, its generated
// tokens as generated ones, so the logits do not change. The oldest is never preempted, so there is
// always progress. A waiting sequence takes pages or a slot only from running ones of lower
// priority.
//
// Pages, slots and sequences are given back once no step in flight can touch them.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "ops/step_inputs.h"

namespace fathom::engine {

struct SchedulerOptions {
  int32_t max_running = 256;
  int32_t max_waiting = 4096;  // only to reserve memory
  int32_t token_budget = 512;  // > max_running * (1 + num_draft_tokens), so that all can progress
  int32_t max_prompt_tokens_per_step = 256;
  int32_t num_draft_tokens = 0;  // a generating sequence yields 1 to 1 + this many tokens a step
  int64_t priority_step_ns = 10'000'000'000;
};

// Consecutive tokens of one sequence in one step. Prompt and generated tokens are never mixed.
struct BatchEntry {
  Sequence* sequence = nullptr;
  ops::Role role = ops::Role::kPrompt;
  int32_t first_position = 0;
  int32_t count = 0;
  bool needs_logits = false;  // of the last token (of every one when there are draft tokens)
  int32_t num_draft = 0;      // of count, at the end
};

struct Batch {
  uint64_t step_id = 0;
  int32_t num_tokens = 0;
  int32_t num_prompt_tokens = 0;
  std::vector<BatchEntry> entries;
};

// What the scheduler did besides filling a batch.
struct Transitions {
  std::vector<Sequence*> admitted;
  struct Preempted {
    Sequence* sequence;
    int32_t tokens;  // whose pages were given back
  };
  std::vector<Preempted> preempted;
  std::vector<Sequence*> expired;  // ended: their deadline has passed
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, PrefixCache& cache);

  // Takes a waiting sequence. Its max_total pages fit into the pool; max_total > num_prompt.
  void Add(Sequence& sequence, int64_t now_ns);

  // Fills `batch` with the next step; without entries when nothing can run before a result arrives.
  // `transitions` is overwritten.
  void Schedule(int64_t now_ns, Batch& batch, Transitions& transitions);

  // What a step yielded for one of its entries: none unless the entry needed logits.
  struct Outcome {
    int32_t first = 0;  // index in Sequence::tokens of the first new token
    int32_t count = 0;  // taken; the rest lay behind the end
    std::optional<FinishReason> finish;
  };
  // The results of the oldest step in flight: for each entry, in order. A sequence that has ended
  // meanwhile takes nothing.
  Outcome Apply(const BatchEntry& entry, std::span<const int32_t> tokens);
  // After all entries: nothing of this step or an earlier one runs any more.
  void Complete(uint64_t step_id);

  // Ends a sequence from outside: cancelled, stopped by its listener, failed.
  void End(Sequence& sequence);

  // Ended sequences that nothing refers to any more; the caller clears the list.
  std::vector<Sequence*>& retired() { return retired_; }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  uint64_t preemptions() const { return preemptions_; }
  std::span<Sequence* const> running() const { return running_; }
  std::span<Sequence* const> waiting() const { return waiting_; }
  // The earliest deadline, 0 for none: when Schedule has something to do without a new event.
  int64_t next_deadline_ns() const { return next_deadline_ns_; }

 private:
  void Expire(int64_t now_ns, Transitions& transitions);
  void MakeRoomForHead(Transitions& transitions);
  void ScheduleGenerating(Batch& batch, Transitions& transitions);
  // Both take what they use from `budget`.
  void ScheduleCatchUp(Batch& batch, int32_t& budget);
  void Admit(Batch& batch, int32_t& budget, Transitions& transitions);

  void AddChunk(Sequence& sequence, Batch& batch, int32_t& budget);
  void AddEntry(const BatchEntry& entry, Batch& batch);
  bool GrowTo(Sequence& sequence, int32_t num_tokens);
  int32_t PagesFor(int32_t num_tokens) const;
  // Pages that admission would take from those available (beyond: those of other sequences).
  int32_t PagesToAdmit(Sequence& sequence) const;
  int32_t PagesForAdmission() const;
  // A running sequence is computing the page that this one would need next.
  bool IsUnderWay(Sequence& sequence) const;
  void Preempt(Sequence& sequence, Transitions& transitions);
  void GiveBack(Sequence& sequence);
  void Release(Sequence& sequence);
  void PublishComputed(Sequence& sequence);

  SchedulerOptions options_;
  PrefixCache& cache_;
  std::vector<Sequence*> running_;  // oldest first
  std::vector<Sequence*> waiting_;  // oldest first
  std::vector<Sequence*> pending_;  // their pages come back with Sequence::last_step
  struct PendingPage {
    PageId page;
    uint64_t step_id;
  };
  std::vector<PendingPage> pending_pages_;  // replaced by equal ones of the prefix cache
  std::vector<Sequence*> retired_;
  std::vector<int32_t> free_slots_;
  uint64_t next_step_ = 1;
  int64_t next_deadline_ns_ = 0;
  uint64_t preemptions_ = 0;
};

}  // namespace fathom::engine
