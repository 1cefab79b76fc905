#include "diagnose/understand/accounting.h"

#include <algorithm>
#include <optional>

#include "diagnose/understand/intervals.h"

namespace fathom::diagnose {
namespace {

// An operator that computes for less than this before its first launch is ordinary dispatch.
constexpr int64_t kMinPlanNs = 500'000;
// A launch that returned this long before the gap had its work queued in time: the GPU's front end
// needs a few microseconds from the call to the kernel.
constexpr int64_t kQueueMarginNs = 1'000;

// The API calls of a thread that stop or delay launches, in time order.
struct Notable {
  uint32_t slice;
  GapCause cause;
};

class Accountant {
 public:
  Accountant(const TraceIndex& index, const Steps& steps)
      : index_(index), timeline_(index.timeline()), slices_(timeline_.slices), steps_(steps) {
    CollectNotable();
  }

  std::vector<StepAccount> Run() {
    std::vector<StepAccount> accounts;
    accounts.reserve(steps_.all.size());
    for (const Step& step : steps_.all) accounts.push_back(One(step));
    return accounts;
  }

 private:
  void CollectNotable() {
    notable_.resize(timeline_.tracks.size());
    off_cpu_.resize(timeline_.tracks.size());
    std::vector<int8_t> cached(timeline_.strings.size(), -1);
    const auto cause_of = [&](StringId name) {
      if (cached[name] < 0) {
        const std::string_view call = timeline_.Name(name);
        const GapCause cause = IsSynchronising(call) ? GapCause::kSyncCall
                               : IsAllocation(call)  ? GapCause::kAllocator
                               : IsModuleLoad(call)  ? GapCause::kModuleLoad
                                                     : GapCause::kUnknown;
        cached[name] = static_cast<int8_t>(cause);
      }
      return static_cast<GapCause>(cached[name]);
    };
    for (TrackId track = 0; track < timeline_.tracks.size(); ++track) {
      if (timeline_.tracks[track].kind == TrackKind::kGpuStream) continue;
      for (const uint32_t s : index_.thread(track)) {
        const Category c = slices_.category[s];
        if (c == Category::kRuntime || c == Category::kDriver) {
          const GapCause cause = cause_of(slices_.name[s]);
          if (cause != GapCause::kUnknown) notable_[track].push_back({s, cause});
        } else if (c == Category::kOverhead) {
          overhead_.push_back({slices_.start_ns[s], slices_.end_ns(s)});
        } else if (c == Category::kSchedule) {
          off_cpu_[track].push_back({slices_.start_ns[s], slices_.end_ns(s)});
        }
      }
      Merge(off_cpu_[track]);
    }
    Merge(overhead_);
  }

  StepAccount One(const Step& step) {
    StepAccount account;
    account.wall_ns = step.wall_ns();
    const std::span<const uint32_t> work = steps_.WorkOf(step);
    account.num_kernels = static_cast<uint32_t>(work.size());
    std::vector<uint32_t> launches;
    for (const uint32_t s : work) launches.push_back(index_.launch(s));
    std::sort(launches.begin(), launches.end());
    account.num_launches =
        static_cast<uint32_t>(std::unique(launches.begin(), launches.end()) - launches.begin());

    const std::vector<Interval> compute = AttributeCompute(step, work, account);
    AttributeCommunication(step, work, compute, account);
    FindGaps(step, work, account);
    return account;
  }

  // In start order each piece of work gets the time that no earlier one holds.
  std::vector<Interval> AttributeCompute(const Step& step, std::span<const uint32_t> work,
                                         StepAccount& account) const {
    std::vector<Interval> merged;
    int64_t frontier = step.start_ns;
    for (const uint32_t s : work) {
      const KernelClass kind = index_.kind(s);
      if (IsCommunication(kind)) continue;
      const int64_t start = std::max(slices_.start_ns[s], frontier);
      const int64_t end = std::min(slices_.end_ns(s), step.end_ns);
      if (end <= start) continue;
      account.busy_by_class[static_cast<size_t>(kind)] += end - start;
      frontier = end;
      if (!merged.empty() && merged.back().end_ns == start) {
        merged.back().end_ns = end;
      } else {
        merged.push_back({start, end});
      }
    }
    return merged;
  }

  void AttributeCommunication(const Step& step, std::span<const uint32_t> work,
                              const std::vector<Interval>& compute, StepAccount& account) const {
    std::vector<Interval> merged;
    for (const uint32_t s : work) {
      if (!IsCommunication(index_.kind(s))) continue;
      const int64_t start = std::max(slices_.start_ns[s], step.start_ns);
      const int64_t end = std::min(slices_.end_ns(s), step.end_ns);
      if (end <= start) continue;
      if (!merged.empty() && start <= merged.back().end_ns) {
        merged.back().end_ns = std::max(merged.back().end_ns, end);
      } else {
        merged.push_back({start, end});
      }
    }
    auto next = compute.begin();
    for (const Interval& m : merged) {
      account.communication_ns += m.end_ns - m.start_ns;
      int64_t hidden = 0;
      while (next != compute.end() && next->end_ns <= m.start_ns) ++next;
      for (auto c = next; c != compute.end() && c->start_ns < m.end_ns; ++c) {
        hidden += Overlap(m.start_ns, m.end_ns, c->start_ns, c->end_ns);
      }
      account.exposed_communication_ns += m.end_ns - m.start_ns - hidden;
    }
    account.busy_by_class[static_cast<size_t>(KernelClass::kCollective)] +=
        account.exposed_communication_ns;
    for (const int64_t ns : account.busy_by_class) account.busy_ns += ns;
  }

  void FindGaps(const Step& step, std::span<const uint32_t> work, StepAccount& account) const {
    int64_t frontier = step.start_ns;
    uint32_t previous = kNone;
    for (const uint32_t s : work) {
      const int64_t start = std::clamp(slices_.start_ns[s], step.start_ns, step.end_ns);
      if (start > frontier) AddGap(step, frontier, start, previous, s, account);
      const int64_t end = std::min(slices_.end_ns(s), step.end_ns);
      if (end > frontier) {
        frontier = end;
        previous = s;
      }
    }
    if (step.end_ns > frontier) AddGap(step, frontier, step.end_ns, previous, kNone, account);
  }

  void AddGap(const Step& step, int64_t start, int64_t end, uint32_t previous, uint32_t next,
              StepAccount& account) const {
    Gap gap{.start_ns = start, .end_ns = end, .next = next};
    Explain(step, previous, gap);
    account.idle_by_cause[static_cast<size_t>(gap.cause)] += gap.length_ns();
    account.gaps.push_back(gap);
  }

  void Explain(const Step& step, uint32_t previous, Gap& gap) const {
    // Without GPU rows the trace does not show that the GPU idled, still less why.
    if (step.num_work == 0) {
      gap.cause = GapCause::kUnknown;
      return;
    }
    if (Covered(overhead_, gap.start_ns, gap.end_ns) * 2 >= gap.length_ns()) {
      gap.cause = GapCause::kProfiler;
      return;
    }
    const uint32_t launch = gap.next == kNone ? kNone : index_.launch(gap.next);
    const uint32_t launched_before = previous == kNone ? kNone : index_.launch(previous);
    const TrackId thread = launch != kNone ? slices_.track[launch] : step.thread;
    if (thread == kNone || (gap.next != kNone && launch == kNone)) {
      gap.cause = GapCause::kUnknown;
      return;
    }
    if (launch != kNone &&
        (launch == launched_before || slices_.end_ns(launch) + kQueueMarginNs < gap.start_ns)) {
      gap.cause = GapCause::kQueued;
      return;
    }
    // What the launching thread did from its last launch to this one.
    const int64_t from = launched_before != kNone && slices_.track[launched_before] == thread
                             ? slices_.end_ns(launched_before)
                             : step.start_ns;
    const int64_t until = launch == kNone ? gap.end_ns : slices_.start_ns[launch];
    if (NameNotable(thread, from, until, gap)) return;
    if (launch != kNone && NamePlanBuilding(launch, launched_before, gap)) return;
    if (Covered(off_cpu_[thread], gap.start_ns, gap.end_ns) * 2 >= gap.length_ns()) {
      gap.cause = GapCause::kPreempted;
      return;
    }
    const bool missed = !step.graph && steps_.buckets[step.bucket].graph_expected;
    gap.cause = missed ? GapCause::kGraphMiss : GapCause::kLaunchBound;
    gap.culprit = launch;
  }

  // An allocation or a load must fill a good part of the gap; a synchronisation explains the whole
  // gap behind it, because the queue was empty when it returned.
  bool NameNotable(TrackId thread, int64_t from, int64_t until, Gap& gap) const {
    const std::vector<Notable>& calls = notable_[thread];
    auto it = std::lower_bound(calls.begin(), calls.end(), from, [&](const Notable& n, int64_t t) {
      return slices_.end_ns(n.slice) < t;
    });
    std::optional<Notable> sync;
    std::array<int64_t, kNumGapCauses> covered{};
    std::array<uint32_t, kNumGapCauses> longest{};
    longest.fill(kNone);
    for (; it != calls.end() && slices_.start_ns[it->slice] < until; ++it) {
      if (it->cause == GapCause::kSyncCall) {
        // Only one that ended in the gap (or fills it) held back this launch.
        if (slices_.end_ns(it->slice) >= gap.start_ns) sync = *it;
        continue;
      }
      const auto cause = static_cast<size_t>(it->cause);
      covered[cause] +=
          Overlap(gap.start_ns, gap.end_ns, slices_.start_ns[it->slice], slices_.end_ns(it->slice));
      if (longest[cause] == kNone || slices_.dur_ns[it->slice] > slices_.dur_ns[longest[cause]]) {
        longest[cause] = it->slice;
      }
    }
    for (const GapCause cause : {GapCause::kModuleLoad, GapCause::kAllocator}) {
      if (covered[static_cast<size_t>(cause)] * 10 >= gap.length_ns() * 3) {
        gap.cause = cause;
        gap.culprit = longest[static_cast<size_t>(cause)];
        return true;
      }
    }
    // At a step's end the CPU waits for the result: that is the step's one legitimate
    // synchronisation.
    if (sync && gap.next != kNone) {
      gap.cause = GapCause::kSyncCall;
      gap.culprit = sync->slice;
      return true;
    }
    return false;
  }

  // The innermost operator around the launch that had launched nothing before and had computed for
  // most of the gap.
  bool NamePlanBuilding(uint32_t launch, uint32_t launched_before, Gap& gap) const {
    const uint32_t op = index_.FindAncestor(
        launch, [&](uint32_t s) { return slices_.category[s] == Category::kCpuOp; });
    if (op == kNone) return false;
    const int64_t before = slices_.start_ns[launch] - slices_.start_ns[op];
    const bool first_launch =
        launched_before == kNone || slices_.start_ns[launched_before] < slices_.start_ns[op];
    if (!first_launch || before < kMinPlanNs) return false;
    if (Overlap(gap.start_ns, gap.end_ns, slices_.start_ns[op], slices_.start_ns[launch]) * 2 <
        gap.length_ns()) {
      return false;
    }
    gap.cause = GapCause::kPlanBuilding;
    gap.culprit = op;
    return true;
  }

  const TraceIndex& index_;
  const Timeline& timeline_;
  const Slices& slices_;
  const Steps& steps_;
  std::vector<std::vector<Notable>> notable_;   // [num_tracks]
  std::vector<std::vector<Interval>> off_cpu_;  // [num_tracks], merged
  std::vector<Interval> overhead_;              // of all threads, merged
};

bool HasAny(std::string_view call, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return call.find(word) != std::string_view::npos;
  });
}

}  // namespace

std::string_view GapCauseName(GapCause cause) {
  static constexpr std::array<std::string_view, kNumGapCauses> kNames = {
      "launch-bound", "sync-call", "allocator", "plan-building", "module-load",
      "graph-miss",   "preempted", "profiler",  "queued",        "unknown"};
  return kNames[static_cast<size_t>(cause)];
}

bool IsSynchronising(std::string_view call) {
  if (HasAny(call, {"Synchronize"})) return true;
  // cudaMemcpy without Async returns when the copy is done.
  return HasAny(call, {"cudaMemcpy", "hipMemcpy", "cuMemcpyDtoH", "cuMemcpyHtoD"}) &&
         !HasAny(call, {"Async"});
}

bool IsAllocation(std::string_view call) {
  return HasAny(call, {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemAlloc", "cuMemFree",
                       "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess",
                       "cuMemAddressReserve", "hipMalloc", "hipFree", "hipHostMalloc"});
}

bool IsModuleLoad(std::string_view call) {
  return HasAny(call, {"ModuleLoad", "LibraryLoad", "cuLink", "nvrtc", "ModuleUnload", "hipModule",
                       "cuKernelGetFunction"});
}

std::vector<StepAccount> Account(const TraceIndex& index, const Steps& steps) {
  return Accountant(index, steps).Run();
}

}  // namespace fathom::diagnose
