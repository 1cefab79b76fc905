#include "observe/attribution.h"

#include <algorithm>

namespace fathom::observe {
namespace {

constexpr std::array<std::string_view, kNumParts> kPartNames = {
    "parse",           "tokenize",   "prefix_lookup", "queue",          "preempted",
    "prefill",         "recompute",  "decode",        "others_prefill", "others_decode",
    "schedule",        "detokenize", "ledger",        "network_write",  "others_detokenize",
    "waiting_for_cpu", "unexplained"};

const Interval& TimeOf(const Interval& interval) { return interval; }
const Interval& TimeOf(const StepInterval& step) { return step.time; }

// Removes `items` from `free` (both sorted, free of overlaps) and calls taken(item, piece) for each
// piece that was still free.
template <class Item, class Taken>
void Take(const std::vector<Item>& items, std::vector<Interval>* free, Taken taken) {
  if (items.empty() || free->empty()) return;
  std::vector<Interval> rest;
  rest.reserve(free->size() + items.size());
  auto item = std::lower_bound(items.begin(), items.end(), free->front().begin_ns,
                               [](const Item& a, int64_t t) { return TimeOf(a).end_ns <= t; });
  for (const Interval& gap : *free) {
    int64_t at = gap.begin_ns;
    while (item != items.end() && TimeOf(*item).end_ns <= at) ++item;
    for (auto it = item; it != items.end() && TimeOf(*it).begin_ns < gap.end_ns; ++it) {
      const Interval piece = {std::max(at, TimeOf(*it).begin_ns),
                              std::min(gap.end_ns, TimeOf(*it).end_ns)};
      if (piece.length() <= 0) continue;
      if (piece.begin_ns > at) rest.push_back({at, piece.begin_ns});
      taken(*it, piece);
      at = piece.end_ns;
    }
    if (at < gap.end_ns) rest.push_back({at, gap.end_ns});
  }
  free->swap(rest);
}

// ns * numerator / denominator, rounded down, without overflow for any span of a server's life.
int64_t Scale(int64_t ns, int64_t numerator, int64_t denominator) {
  return denominator <= 0
             ? 0
             : static_cast<int64_t>(static_cast<__int128>(ns) * numerator / denominator);
}

template <class Item>
void SortAndClipImpl(std::vector<Item>* items, Interval (*get)(const Item&),
                     void (*set)(Item*, Interval)) {
  std::stable_sort(items->begin(), items->end(),
                   [&](const Item& a, const Item& b) { return get(a).begin_ns < get(b).begin_ns; });
  int64_t covered = INT64_MIN;
  size_t kept = 0;
  for (Item& item : *items) {
    Interval time = get(item);
    time.begin_ns = std::max(time.begin_ns, covered);
    if (time.length() <= 0) continue;
    covered = time.end_ns;
    set(&item, time);
    if (&(*items)[kept] != &item) (*items)[kept] = std::move(item);
    ++kept;
  }
  items->resize(kept);
}

// How much of the gaps between two steps was an interruption. The host's own work takes
// microseconds there; a shorter gap says nothing. Gaps are asked about in order.
class Interruptions {
 public:
  explicit Interruptions(const std::vector<OffCpu>& off_cpu) : off_cpu_(off_cpu) {}

  int64_t In(Interval gap) {
    constexpr int64_t kShortestNs = 20'000;
    if (gap.length() < kShortestNs) return 0;
    int64_t ns = 0;
    for (; at_ < off_cpu_.size(); ++at_, spent_ = 0) {
      const OffCpu& off = off_cpu_[at_];
      if (off.time.begin_ns >= gap.end_ns) break;
      const int64_t both =
          std::min(gap.end_ns, off.time.end_ns) - std::max(gap.begin_ns, off.time.begin_ns);
      // What one gap of a span has taken is not there for the next one.
      const int64_t taken = std::clamp<int64_t>(both, 0, off.ns - spent_);
      ns += taken;
      spent_ += taken;
      if (off.time.end_ns > gap.end_ns) break;  // reaches into the next gap
    }
    return ns;
  }

 private:
  const std::vector<OffCpu>& off_cpu_;  // sorted by begin, free of overlaps
  size_t at_ = 0;
  int64_t spent_ = 0;  // of off_cpu_[at_]
};

}  // namespace

std::string_view NameOf(Part part) {
  const auto index = static_cast<size_t>(part);
  return index < kNumParts ? kPartNames[index] : "unknown";
}

Breakdown Attribute(const Timeline& timeline, Interval window, std::vector<StepShare>* shares) {
  Breakdown out;
  out.wall_ns = std::max<int64_t>(0, window.length());
  if (out.wall_ns == 0) return out;
  std::vector<Interval> free = {window};
  auto add = [&out](Part part, int64_t ns) { out.ns[static_cast<size_t>(part)] += ns; };
  auto take = [&](Part part, const std::vector<Interval>& intervals) {
    Take(intervals, &free, [&](const Interval&, Interval piece) { add(part, piece.length()); });
  };

  take(Part::kParse, timeline.parse);
  take(Part::kTokenize, timeline.tokenize);
  take(Part::kPrefixLookup, timeline.prefix_lookup);
  std::vector<Interval> queued;
  Take(timeline.queue, &free, [&](const Interval&, Interval piece) {
    add(Part::kQueue, piece.length());
    queued.push_back(piece);
  });
  Take(timeline.steps, &queued, [&](const StepInterval& step, Interval piece) {
    (step.prompt_tokens > 0 ? out.queue_others_prefill_ns : out.queue_others_decode_ns) +=
        piece.length();
  });
  take(Part::kPreempted, timeline.preempted);

  Take(timeline.steps, &free, [&](const StepInterval& step, Interval piece) {
    const int64_t ns = piece.length();
    if (!step.took_part()) {
      add(step.prompt_tokens > 0 ? Part::kOthersPrefill : Part::kOthersDecode, ns);
      return;
    }
    const int64_t others_tokens =
        std::clamp<int64_t>(int64_t{step.prompt_tokens} - step.own_prompt_tokens, 0, step.tokens);
    const int64_t others = Scale(ns, others_tokens, step.tokens);
    const int64_t own = ns - others;
    add(Part::kOthersPrefill, others);
    int64_t explained = 0;
    OpTimes& ops = out.op_ns[static_cast<size_t>(step.own)];
    for (size_t op = 0; op < kNumOps; ++op) {
      const int64_t part = Scale(step.op_ns[op], own, step.time.length());
      ops[op] += part;
      explained += part;
    }
    add(step.own, explained);
    const int64_t waited =
        std::min(own - explained, Scale(step.off_cpu_ns, own, step.time.length()));
    add(Part::kWaitingForCpu, waited);
    add(Part::kUnexplained, own - explained - waited);
    if (shares != nullptr) {
      if (!shares->empty() && shares->back().step == &step) {
        shares->back().own_ns += own;
        shares->back().others_prefill_ns += others;
      } else {
        shares->push_back({&step, own, others});
      }
    }
  });

  take(Part::kSchedule, timeline.schedule);
  take(Part::kDetokenize, timeline.detokenize);
  take(Part::kLedger, timeline.ledger);
  take(Part::kNetworkWrite, timeline.network_write);
  take(Part::kOthersDetokenize, timeline.others_detokenize);
  take(Part::kWaitingForCpu, timeline.waiting);
  Interruptions interruptions(timeline.off_cpu);
  for (const Interval& gap : free) {
    const int64_t waited = interruptions.In(gap);
    add(Part::kWaitingForCpu, waited);
    add(Part::kUnexplained, gap.length() - waited);
  }
  return out;
}

void SortAndClip(std::vector<Interval>* intervals) {
  SortAndClipImpl<Interval>(
      intervals, [](const Interval& i) { return i; }, [](Interval* i, Interval t) { *i = t; });
}

void SortAndClip(std::vector<StepInterval>* steps) {
  SortAndClipImpl<StepInterval>(
      steps, [](const StepInterval& s) { return s.time; },
      [](StepInterval* s, Interval t) {
        for (int64_t& ns : s->op_ns) ns = Scale(ns, t.length(), s->time.length());
        s->time = t;
      });
}

}  // namespace fathom::observe
