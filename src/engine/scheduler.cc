#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::engine {
namespace {

// Waiting sequences that may be passed over in one step because what they need is under way.
constexpr int kMaxPassedOver = 64;

bool Older(const Sequence* a, const Sequence* b) {
  return a->order != b->order ? a->order < b->order : a->spec.id < b->spec.id;
}

void Insert(std::vector<Sequence*>& list, Sequence& sequence) {
  list.insert(std::upper_bound(list.begin(), list.end(), &sequence, Older), &sequence);
}

void Erase(std::vector<Sequence*>& list, const Sequence& sequence) {
  const auto it = std::find(list.begin(), list.end(), &sequence);
  FATHOM_CHECK(it != list.end(), "request {} is in no list", sequence.spec.id);
  list.erase(it);
}

// All its known tokens but the last are computed or will be by a step in flight.
bool Generates(const Sequence& s) {
  return s.scheduled >= s.num_prompt && s.scheduled + 1 >= static_cast<int32_t>(s.tokens.size());
}

// The step after those in flight can be laid out now.
bool CanGenerate(const Sequence& s) {
  return Generates(s) && s.in_flight_min == s.in_flight_max &&
         !(s.needs_tokens_on_host && s.in_flight_max > 0) && s.logical_length() < s.max_total;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, PrefixCache& cache)
    : options_(options), cache_(cache) {
  FATHOM_CHECK(options.token_budget > options.max_running * (1 + options.num_draft_tokens));
  FATHOM_CHECK(options.max_prompt_tokens_per_step > 0);
  const auto most = static_cast<size_t>(options.max_running + options.max_waiting);
  running_.reserve(most);
  waiting_.reserve(most);
  pending_.reserve(most);
  retired_.reserve(most);
  pending_pages_.reserve(most);
  for (int32_t slot = options.max_running; slot-- > 0;) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence& sequence, int64_t now_ns) {
  FATHOM_CHECK(sequence.num_prompt > 0 && sequence.max_total > sequence.num_prompt);
  sequence.order = now_ns - sequence.spec.priority * options_.priority_step_ns;
  sequence.state = Sequence::State::kWaiting;
  sequence.tokens.reserve(static_cast<size_t>(sequence.max_total));
  sequence.tokens.assign(sequence.spec.prompt.begin(), sequence.spec.prompt.end());
  sequence.pages.reserve(static_cast<size_t>(PagesFor(sequence.max_total)));
  Insert(waiting_, sequence);
  const int64_t deadline = sequence.spec.deadline_ns;
  if (deadline != 0 && (next_deadline_ns_ == 0 || deadline < next_deadline_ns_)) {
    next_deadline_ns_ = deadline;
  }
}

void Scheduler::Schedule(int64_t now_ns, Batch& batch, Transitions& transitions) {
  batch.step_id = next_step_;
  batch.num_tokens = 0;
  batch.num_prompt_tokens = 0;
  batch.entries.clear();
  transitions.admitted.clear();
  transitions.preempted.clear();
  transitions.expired.clear();

  Expire(now_ns, transitions);
  MakeRoomForHead(transitions);
  ScheduleGenerating(batch, transitions);
  int32_t budget = options_.token_budget - batch.num_tokens;
  if (std::any_of(running_.begin(), running_.end(), [](auto* s) { return Generates(*s); })) {
    budget = std::min(budget, options_.max_prompt_tokens_per_step);
  }
  ScheduleCatchUp(batch, budget);
  Admit(batch, budget, transitions);
  if (!batch.entries.empty()) ++next_step_;
}

void Scheduler::Expire(int64_t now_ns, Transitions& transitions) {
  if (next_deadline_ns_ == 0 || now_ns < next_deadline_ns_) return;
  next_deadline_ns_ = 0;
  for (const auto* list : {&running_, &waiting_}) {
    for (Sequence* sequence : *list) {
      const int64_t deadline = sequence->spec.deadline_ns;
      if (deadline == 0) continue;
      if (deadline <= now_ns) {
        transitions.expired.push_back(sequence);
      } else if (next_deadline_ns_ == 0 || deadline < next_deadline_ns_) {
        next_deadline_ns_ = deadline;
      }
    }
  }
  for (Sequence* sequence : transitions.expired) End(*sequence);
}

void Scheduler::MakeRoomForHead(Transitions& transitions) {
  if (waiting_.empty() || !pending_.empty()) return;
  Sequence& head = *waiting_.front();
  if (IsUnderWay(head)) return;
  const int32_t missing = PagesToAdmit(head) - PagesForAdmission();
  const bool has_slot = !free_slots_.empty();
  if (missing <= 0 && has_slot) return;
  const auto yields = [&head](const Sequence* s) {
    return s->spec.priority < head.spec.priority && Older(&head, s);
  };
  int32_t victims = 0;
  int32_t freed = 0;
  for (size_t i = running_.size(); i-- > 0;) {
    if (!yields(running_[i])) continue;
    ++victims;
    freed += static_cast<int32_t>(running_[i]->pages.size());
    if (freed >= missing) break;
  }
  if (victims == 0 || freed < missing) return;
  for (size_t i = running_.size(); i-- > 0 && victims > 0;) {
    if (!yields(running_[i])) continue;
    Preempt(*running_[i], transitions);
    --victims;
  }
}

void Scheduler::ScheduleGenerating(Batch& batch, Transitions& transitions) {
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption takes from the end
    Sequence& sequence = *running_[i];
    if (!CanGenerate(sequence)) continue;
    const int32_t draft =
        std::min(options_.num_draft_tokens, sequence.max_total - sequence.logical_length() - 1);
    const int32_t count = 1 + draft;
    bool grown = GrowTo(sequence, sequence.scheduled + count);
    // Pages that are on their way back are waited for. The youngest keeps what it has and waits.
    while (!grown && pending_.empty() && running_.back() != &sequence) {
      Preempt(*running_.back(), transitions);
      grown = GrowTo(sequence, sequence.scheduled + count);
    }
    if (!grown) continue;
    AddEntry({.sequence = &sequence,
              .role = ops::Role::kGenerated,
              .first_position = sequence.scheduled,
              .count = count,
              .needs_logits = true,
              .num_draft = draft},
             batch);
  }
}

void Scheduler::ScheduleCatchUp(Batch& batch, int32_t& budget) {
  for (Sequence* sequence : running_) {
    if (budget == 0) return;
    if (!Generates(*sequence)) AddChunk(*sequence, batch, budget);
  }
}

void Scheduler::Admit(Batch& batch, int32_t& budget, Transitions& transitions) {
  int passed_over = 0;
  for (size_t i = 0; i < waiting_.size() && passed_over < kMaxPassedOver;) {
    if (budget == 0 || free_slots_.empty()) return;
    Sequence& sequence = *waiting_[i];
    if (sequence.release_pending) return;
    if (IsUnderWay(sequence)) {
      ++passed_over;
      ++i;
      continue;
    }
    if (PagesToAdmit(sequence) > PagesForAdmission()) return;

    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    Insert(running_, sequence);
    sequence.state = Sequence::State::kRunning;
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    const PrefixCache::Match match =
        cache_.Acquire(sequence.path, sequence.tokens, sequence.spec.id,
                       sequence.spec.stripped_thinking, sequence.pages);
    sequence.published = match.num_pages;
    sequence.scheduled = sequence.computed = match.num_pages * cache_.page_tokens();
    if (!sequence.admitted) {
      sequence.admitted = true;
      sequence.cached_prompt_tokens = sequence.scheduled;
    }
    const bool grown = GrowTo(sequence, static_cast<int32_t>(sequence.tokens.size()));
    FATHOM_CHECK(grown, "request {} was admitted without pages", sequence.spec.id);
    transitions.admitted.push_back(&sequence);
    AddChunk(sequence, batch, budget);
  }
}

void Scheduler::AddChunk(Sequence& sequence, Batch& batch, int32_t& budget) {
  const auto length = static_cast<int32_t>(sequence.tokens.size());
  const bool prompt = sequence.scheduled < sequence.num_prompt;
  const int32_t end = prompt ? sequence.num_prompt : length;
  const int32_t count = std::min(end - sequence.scheduled, budget);
  budget -= count;
  AddEntry({.sequence = &sequence,
            .role = prompt ? ops::Role::kPrompt : ops::Role::kGenerated,
            .first_position = sequence.scheduled,
            .count = count,
            .needs_logits = sequence.scheduled + count == length},
           batch);
}

void Scheduler::AddEntry(const BatchEntry& entry, Batch& batch) {
  Sequence& sequence = *entry.sequence;
  sequence.scheduled += entry.count;
  sequence.last_step = batch.step_id;
  ++sequence.in_flight_steps;
  if (entry.needs_logits) {
    sequence.in_flight_min += 1;
    sequence.in_flight_max += 1 + entry.num_draft;
  }
  batch.num_tokens += entry.count;
  if (entry.role == ops::Role::kPrompt) batch.num_prompt_tokens += entry.count;
  batch.entries.push_back(entry);
}

int32_t Scheduler::PagesFor(int32_t num_tokens) const {
  return (num_tokens + cache_.page_tokens() - 1) / cache_.page_tokens();
}

bool Scheduler::GrowTo(Sequence& sequence, int32_t num_tokens) {
  const auto wanted = static_cast<size_t>(PagesFor(num_tokens));
  while (sequence.pages.size() < wanted) {
    const PageId page = cache_.Allocate();
    if (page == kNoPage) return false;
    sequence.pages.push_back(page);
  }
  return true;
}

int32_t Scheduler::PagesToAdmit(Sequence& sequence) const {
  const PrefixCache::Match match = cache_.Find(sequence.path, sequence.tokens);
  return PagesFor(static_cast<int32_t>(sequence.tokens.size())) - match.num_pages +
         match.unreferenced;
}

int32_t Scheduler::PagesForAdmission() const {
  // A part is left to those that run, so that a newcomer is not preempted at once.
  const int32_t reserve = running_.empty() ? 0 : cache_.total_pages() / 64;
  return cache_.Available() - reserve;
}

bool Scheduler::IsUnderWay(Sequence& sequence) const {
  if (!cache_.enabled()) return false;
  const auto next = static_cast<size_t>(cache_.Find(sequence.path, sequence.tokens).num_pages);
  const size_t usable = (sequence.tokens.size() - 1) / static_cast<size_t>(cache_.page_tokens());
  if (next >= usable || next >= sequence.path.chains.size()) return false;
  const auto end = static_cast<int32_t>(next + 1) * cache_.page_tokens();
  return std::any_of(running_.begin(), running_.end(), [&](const Sequence* other) {
    return other->path.space == sequence.path.space && other->num_prompt >= end &&
           static_cast<size_t>(other->published) <= next &&
           other->path.chains[next] == sequence.path.chains[next];
  });
}

Scheduler::Outcome Scheduler::Apply(const BatchEntry& entry, std::span<const int32_t> tokens) {
  Sequence& sequence = *entry.sequence;
  --sequence.in_flight_steps;
  if (entry.needs_logits) {
    sequence.in_flight_min -= 1;
    sequence.in_flight_max -= 1 + entry.num_draft;
  }
  Outcome outcome{.first = static_cast<int32_t>(sequence.tokens.size())};
  if (sequence.state == Sequence::State::kEnded) return outcome;

  for (const int32_t token : tokens) {
    sequence.tokens.push_back(token);
    ++outcome.count;
    const auto& stops = sequence.spec.stop_tokens;
    if (!sequence.spec.ignore_stop_tokens &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      outcome.finish = FinishReason::kStop;
      break;
    }
    if (static_cast<int32_t>(sequence.tokens.size()) == sequence.max_total) {
      outcome.finish = FinishReason::kLength;
      break;
    }
  }
  if (sequence.state == Sequence::State::kRunning) {
    if (entry.num_draft > 0) {  // keys and values of rejected drafts will be overwritten
      sequence.scheduled = static_cast<int32_t>(sequence.tokens.size()) - 1;
      sequence.computed = sequence.scheduled;
    } else {
      sequence.computed = entry.first_position + entry.count;
    }
    PublishComputed(sequence);
  }
  if (outcome.finish) End(sequence);
  return outcome;
}

void Scheduler::PublishComputed(Sequence& sequence) {
  if (!cache_.enabled()) return;
  while ((sequence.published + 1) * cache_.page_tokens() <= sequence.computed) {
    const PageId replaced =
        cache_.Publish(sequence.path, sequence.tokens, sequence.published, sequence.pages);
    ++sequence.published;
    if (replaced != kNoPage) {
      pending_pages_.push_back({.page = replaced, .step_id = sequence.last_step});
    }
  }
}

void Scheduler::Complete(uint64_t step_id) {
  std::erase_if(pending_pages_, [&](const PendingPage& pending) {
    if (pending.step_id > step_id) return false;
    cache_.Release(pending.page);
    return true;
  });
  std::erase_if(pending_, [&](Sequence* sequence) {
    if (sequence->last_step > step_id) return false;
    Release(*sequence);
    return true;
  });
}

void Scheduler::End(Sequence& sequence) {
  const Sequence::State before = sequence.state;
  FATHOM_CHECK(before != Sequence::State::kEnded, "request {} ends twice", sequence.spec.id);
  sequence.state = Sequence::State::kEnded;
  Erase(before == Sequence::State::kRunning ? running_ : waiting_, sequence);
  if (!sequence.release_pending) GiveBack(sequence);
}

void Scheduler::Preempt(Sequence& sequence, Transitions& transitions) {
  transitions.preempted.push_back({.sequence = &sequence, .tokens = sequence.scheduled});
  ++preemptions_;
  Erase(running_, sequence);
  sequence.state = Sequence::State::kWaiting;
  Insert(waiting_, sequence);
  GiveBack(sequence);
}

void Scheduler::GiveBack(Sequence& sequence) {
  if (sequence.in_flight_steps == 0) {
    Release(sequence);
  } else {
    sequence.release_pending = true;
    pending_.push_back(&sequence);
  }
}

void Scheduler::Release(Sequence& sequence) {
  sequence.release_pending = false;
  if (sequence.slot >= 0) {
    const auto computed = static_cast<size_t>(sequence.computed);
    cache_.Release(sequence.path, std::span(sequence.tokens).first(computed), sequence.pages);
    sequence.pages.clear();
    free_slots_.push_back(sequence.slot);
    sequence.slot = -1;
    sequence.scheduled = sequence.computed = sequence.published = 0;
  }
  if (sequence.state == Sequence::State::kEnded) {
    cache_.ClosePath(sequence.path);
    retired_.push_back(&sequence);
  }
}

}  // namespace fathom::engine
