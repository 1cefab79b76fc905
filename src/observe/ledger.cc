#include "observe/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fathom::observe {
namespace {

using event::Event;
using event::Kind;
using event::Op;

// A step's host ops are kept one by one until this many newer steps exist, then summed up.
constexpr uint64_t kOpenSteps = 64;
constexpr size_t kMaxIntervals = 1 << 18;
// Detokenisations of one step follow each other this closely: they are kept as one interval.
constexpr int64_t kCoalesceNs = 1000;

constexpr std::array<std::string_view, 5> kFinishReasons = {"stop", "length", "cancelled",
                                                            "deadline", "error"};

Interval TimeOf(const Event& e) { return {e.start_ns, e.start_ns + e.duration_ns}; }

const Interval& TimeOf(const Interval& interval) { return interval; }
const Interval& TimeOf(const OffCpu& off_cpu) { return off_cpu.time; }

template <class Item>
void DropBefore(std::deque<Item>* items, int64_t ns) {
  while (!items->empty() &&
         (TimeOf(items->front()).end_ns <= ns || items->size() > kMaxIntervals)) {
    items->pop_front();
  }
}

template <class Item>
std::vector<Item> Overlapping(const std::deque<Item>& items, Interval window) {
  std::vector<Item> out;
  for (const Item& item : items) {
    const Interval& time = TimeOf(item);
    if (time.end_ns > window.begin_ns && time.begin_ns < window.end_ns) out.push_back(item);
  }
  return out;
}

}  // namespace

std::string_view FinishReasonName(uint16_t reason) {
  return reason < kFinishReasons.size() ? kFinishReasons[reason] : "unknown";
}

void Ledger::Consume(std::span<const Event> events) {
  std::lock_guard lock(mutex_);
  for (const Event& e : events) Apply(e);
  Settle();
}

void Ledger::OnDropped(uint64_t count) {
  std::lock_guard lock(mutex_);
  for (auto& [id, live] : live_) live.dropped_events += count;
}

std::optional<RequestLedger> Ledger::Find(uint64_t request_id, int64_t now_ns) const {
  std::lock_guard lock(mutex_);
  if (auto live = live_.find(request_id); live != live_.end()) {
    return Summarize(request_id, live->second, now_ns);
  }
  if (auto kept = kept_.find(request_id); kept != kept_.end()) return kept->second;
  return std::nullopt;
}

void Ledger::Apply(const Event& e) {
  if (e.clock == event::ClockDomain::kHostMonotonic) {
    newest_ns_ = std::max(newest_ns_, e.start_ns + e.duration_ns);
  }
  switch (e.kind) {
    case Kind::kStep:
      if (Step* step = FindOrAddStep(e.step_id)) {
        step->timed = true;
        step->time = TimeOf(e);
        step->tokens = static_cast<uint32_t>(e.value);
        step->prompt_tokens = static_cast<uint32_t>(e.aux);
        step->off_cpu_ns = int64_t{e.off_cpu_us} * 1000;
      }
      return;
    case Kind::kOp:
      if (Step* step = FindOrAddStep(e.step_id); step != nullptr && e.op < Op::kCount) {
        const auto op = static_cast<size_t>(e.op);
        if (e.clock == event::ClockDomain::kGpu) {
          step->gpu_ns[op] += e.duration_ns;
        } else if (step->folded) {
          step->host_ns[op] += e.duration_ns;
        } else {
          step->spans.push_back({TimeOf(e), e.op});
        }
      }
      return;
    case Kind::kSchedule:
      schedules_.push_back(TimeOf(e));
      return;
    case Kind::kWaitForCpu:
      if (e.request_id != 0) return ApplyToRequest(e);
      off_cpu_.push_back({TimeOf(e), static_cast<int64_t>(e.value)});
      return;
    case Kind::kModelLoad:
    case Kind::kCount:
      return;
    default:
      ApplyToRequest(e);
  }
}

Ledger::Live* Ledger::FindOrAddLive(const Event& e) {
  if (auto found = live_.find(e.request_id); found != live_.end()) return &found->second;
  if (auto kept = kept_.find(e.request_id); kept != kept_.end()) {
    ++kept->second.late_events;
    return nullptr;
  }
  const bool begins =
      e.kind == Kind::kRequestArrived || e.kind == Kind::kTokenize || e.kind == Kind::kQueued;
  if (!begins || e.request_id == 0) return nullptr;
  if (live_.size() >= options_.max_live_requests) live_.erase(live_.begin());
  return &live_[e.request_id];
}

void Ledger::ApplyToRequest(const Event& e) {
  Live* live = FindOrAddLive(e);
  if (e.kind == Kind::kDetokenize) {
    const Interval time = TimeOf(e);
    if (!detokenizes_.empty() && time.begin_ns >= detokenizes_.back().begin_ns &&
        time.begin_ns <= detokenizes_.back().end_ns + kCoalesceNs) {
      detokenizes_.back().end_ns = std::max(detokenizes_.back().end_ns, time.end_ns);
    } else {
      detokenizes_.push_back(time);
    }
  }
  if (live == nullptr) return;
  switch (e.kind) {
    case Kind::kRequestArrived:
      live->arrived_ns = e.start_ns;
      break;
    case Kind::kParse:
      live->parse.push_back(TimeOf(e));
      break;
    case Kind::kTokenize:
      live->tokenize.push_back(TimeOf(e));
      live->prompt_tokens = e.value;
      break;
    case Kind::kQueued:
      live->queued_ns = e.start_ns;
      live->prompt_tokens = e.value;
      break;
    case Kind::kScheduled:
      if (live->queued_ns) live->queue.push_back({*live->queued_ns, e.start_ns});
      if (live->preempted_ns) live->preempted.push_back({*live->preempted_ns, e.start_ns});
      live->queued_ns.reset();
      live->preempted_ns.reset();
      break;
    case Kind::kPreempted:
      live->preempted_ns = e.start_ns;
      live->recomputing = true;
      break;
    case Kind::kStepSequence:
      live->uses.push_back({.step_id = e.step_id,
                            .first_position = e.aux,
                            .tokens = static_cast<uint32_t>(e.value),
                            .prompt_role = e.flags == event::kPromptRole,
                            .recompute = live->recomputing});
      break;
    case Kind::kToken:
      live->tokens.push_back({e.value, e.step_id, e.start_ns});
      live->recomputing = false;
      break;
    case Kind::kDetokenize:
      live->detokenize.push_back(TimeOf(e));
      break;
    case Kind::kNetworkWrite:
      live->network_write.push_back(TimeOf(e));
      break;
    case Kind::kLedger:
      live->ledger.push_back(TimeOf(e));
      break;
    case Kind::kWaitForCpu:
      live->waiting.push_back(TimeOf(e));
      break;
    case Kind::kFinished:
      live->finished_ns = e.start_ns;
      live->finish_reason = e.flags;
      live->generated_tokens = e.value;
      break;
    case Kind::kResponded:
      live->responded_ns = e.start_ns;
      break;
    case Kind::kPrefixLookup:
      live->prefix_lookup.push_back(TimeOf(e));
      if (!live->prefix) live->prefix.emplace();
      live->prefix->found_tokens = e.value;
      live->prefix->asked_tokens = e.aux;
      break;
    case Kind::kCacheMiss:
    case Kind::kKvVersionMismatch:
      if (!live->prefix) live->prefix.emplace();
      live->prefix->cause = static_cast<event::MissCause>(e.flags);
      if (e.kind == Kind::kCacheMiss) live->prefix->first_divergent_token = e.value;
      break;
    default:
      break;
  }
}

Ledger::Step* Ledger::FindOrAddStep(uint64_t id) {
  if (id < forgotten_below_) return nullptr;
  if (steps_.empty() || id >= steps_.back().id + options_.max_steps) {
    if (!steps_.empty()) forgotten_below_ = steps_.back().id + 1;
    steps_.clear();
    steps_.push_back({.id = id});
    return &steps_.back();
  }
  if (id < steps_.front().id) {
    if (steps_.front().id - id > kOpenSteps) return nullptr;  // pruned: no request needs it
    while (steps_.front().id > id) steps_.push_front({.id = steps_.front().id - 1});
    return &steps_.front();
  }
  while (steps_.back().id < id) {
    steps_.push_back({.id = steps_.back().id + 1});
    if (steps_.size() > kOpenSteps) {
      Step& step = steps_[steps_.size() - kOpenSteps - 1];
      if (!step.folded) {
        step.host_ns = ExclusiveTimes(step.spans);
        std::vector<OpSpan>().swap(step.spans);
        step.folded = true;
      }
    }
    if (steps_.size() > options_.max_steps) {
      forgotten_below_ = steps_.front().id + 1;
      steps_.pop_front();
    }
  }
  return &steps_[id - steps_.front().id];
}

// Time of each op without that of ops inside it: the innermost span owns the instant.
OpTimes Ledger::ExclusiveTimes(const std::vector<OpSpan>& spans) {
  std::vector<OpSpan> sorted = spans;
  std::stable_sort(sorted.begin(), sorted.end(), [](const OpSpan& a, const OpSpan& b) {
    return a.time.begin_ns != b.time.begin_ns ? a.time.begin_ns < b.time.begin_ns
                                              : a.time.end_ns > b.time.end_ns;
  });
  OpTimes out{};
  std::vector<OpSpan> open;
  int64_t at = INT64_MIN;
  auto advance = [&](int64_t to) {
    if (to > at) out[static_cast<size_t>(open.back().op)] += to - at;
    at = std::max(at, to);
  };
  for (const OpSpan& span : sorted) {
    while (!open.empty() && open.back().time.end_ns <= span.time.begin_ns) {
      advance(open.back().time.end_ns);
      open.pop_back();
    }
    if (open.empty()) {
      at = std::max(at, span.time.begin_ns);
    } else {
      advance(span.time.begin_ns);
    }
    open.push_back(span);
  }
  while (!open.empty()) {
    advance(open.back().time.end_ns);
    open.pop_back();
  }
  return out;
}

// When the device kept its own time the host spans are only the cost of enqueuing.
OpTimes Ledger::TimesOf(const Step& step) {
  const bool on_gpu =
      std::any_of(step.gpu_ns.begin(), step.gpu_ns.end(), [](int64_t ns) { return ns > 0; });
  OpTimes times = on_gpu ? step.gpu_ns : step.folded ? step.host_ns : ExclusiveTimes(step.spans);
  const int64_t sum = std::accumulate(times.begin(), times.end(), int64_t{0});
  const int64_t length = step.time.length();
  if (sum > length) {  // clocks of two devices: the ops keep their proportions
    for (int64_t& ns : times) {
      ns = static_cast<int64_t>(static_cast<__int128>(ns) * length / sum);
    }
  }
  return times;
}

void Ledger::Settle() {
  int64_t oldest = INT64_MAX;
  for (auto it = live_.begin(); it != live_.end();) {
    const Live& live = it->second;
    const bool engine_done = live.finished_ns || (!live.queued_ns && live.uses.empty());
    if (live.responded_ns && engine_done && newest_ns_ >= *live.responded_ns + options_.settle_ns) {
      RequestLedger& kept = kept_[it->first] = Summarize(it->first, live, newest_ns_);
      if (options_.on_settled) options_.on_settled(kept);
      kept_order_.push_back(it->first);
      it = live_.erase(it);
      continue;
    }
    oldest = std::min(oldest, live.arrived_ns.value_or(live.queued_ns.value_or(newest_ns_)));
    ++it;
  }
  while (kept_order_.size() > options_.kept_requests) {
    kept_.erase(kept_order_.front());
    kept_order_.pop_front();
  }
  while (!steps_.empty()) {
    const Step& step = steps_.front();
    const bool past =
        step.timed ? step.time.end_ns <= oldest : step.id + kOpenSteps < steps_.back().id;
    if (!past || steps_.size() == 1) break;
    steps_.pop_front();
  }
  DropBefore(&schedules_, oldest);
  DropBefore(&detokenizes_, oldest);
  DropBefore(&off_cpu_, oldest);
}

Timeline Ledger::TimelineOf(const Live& live, Interval window) const {
  Timeline out;
  out.parse = live.parse;
  out.tokenize = live.tokenize;
  out.prefix_lookup = live.prefix_lookup;
  out.queue = live.queue;
  out.preempted = live.preempted;
  if (live.queued_ns) out.queue.push_back({*live.queued_ns, window.end_ns});
  if (live.preempted_ns) out.preempted.push_back({*live.preempted_ns, window.end_ns});
  out.detokenize = live.detokenize;
  out.network_write = live.network_write;
  out.ledger = live.ledger;
  out.waiting = live.waiting;
  out.schedule = Overlapping(schedules_, window);
  out.others_detokenize = Overlapping(detokenizes_, window);
  out.off_cpu = Overlapping(off_cpu_, window);
  auto use = live.uses.begin();
  for (const Step& step : steps_) {
    if (!step.timed || step.time.end_ns <= window.begin_ns || step.time.begin_ns >= window.end_ns) {
      continue;
    }
    StepInterval& item = out.steps.emplace_back();
    item.time = step.time;
    item.step_id = step.id;
    item.tokens = step.tokens;
    item.prompt_tokens = step.prompt_tokens;
    item.op_ns = TimesOf(step);
    item.off_cpu_ns = step.off_cpu_ns;
    while (use != live.uses.end() && use->step_id < step.id) ++use;
    for (; use != live.uses.end() && use->step_id == step.id; ++use) {
      item.own = use->recompute     ? Part::kRecompute
                 : use->prompt_role ? Part::kPrefill
                                    : Part::kDecode;
      if (item.own_tokens == 0) item.first_position = use->first_position;
      item.own_tokens += use->tokens;
      if (use->prompt_role) item.own_prompt_tokens += use->tokens;
    }
  }
  for (auto* list :
       {&out.parse, &out.tokenize, &out.prefix_lookup, &out.queue, &out.preempted, &out.schedule,
        &out.detokenize, &out.network_write, &out.others_detokenize, &out.ledger, &out.waiting}) {
    SortAndClip(list);
  }
  SortAndClip(&out.steps);
  return out;
}

RequestLedger Ledger::Summarize(uint64_t id, const Live& live, int64_t now_ns) const {
  RequestLedger out;
  out.request_id = id;
  out.arrived_ns = live.arrived_ns.value_or(live.queued_ns.value_or(now_ns));
  out.ended = live.responded_ns.has_value();
  out.finish_reason = live.finish_reason;
  out.prompt_tokens = live.prompt_tokens;
  out.generated_tokens = live.finish_reason ? live.generated_tokens : live.tokens.size();
  out.prefix = live.prefix;
  out.dropped_events = live.dropped_events;
  for (const StepUse& use : live.uses) out.forgotten_steps += use.step_id < forgotten_below_;

  const Interval window = {out.arrived_ns, live.responded_ns.value_or(now_ns)};
  const Timeline timeline = TimelineOf(live, window);
  std::vector<StepShare> shares;
  out.total = Attribute(timeline, window, &shares);
  for (const StepShare& share : shares) {
    if (share.step->own == Part::kDecode) ++out.decode_steps;
    if (share.step->own == Part::kPrefill) {
      out.chunks.push_back({share.step->step_id, share.step->first_position, share.step->own_tokens,
                            share.own_ns, share.others_prefill_ns});
    }
  }
  if (live.tokens.empty()) return out;

  out.ttft_ns = live.tokens.front().time_ns - out.arrived_ns;
  out.to_first = Attribute(timeline, {out.arrived_ns, live.tokens.front().time_ns});
  std::vector<size_t> order(live.tokens.size() - 1);
  std::iota(order.begin(), order.end(), size_t{1});
  auto gap = [&](size_t i) { return live.tokens[i].time_ns - live.tokens[i - 1].time_ns; };
  const size_t n = std::min(options_.slowest_tokens, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&](size_t a, size_t b) { return gap(a) != gap(b) ? gap(a) > gap(b) : a < b; });
  for (size_t i = 0; i < n; ++i) {
    const TokenTime& token = live.tokens[order[i]];
    out.slowest.push_back(
        {token.index, token.step_id,
         Attribute(timeline, {live.tokens[order[i] - 1].time_ns, token.time_ns})});
  }
  return out;
}

}  // namespace fathom::observe
