#include "diagnose/understand/steps.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "diagnose/understand/intervals.h"

namespace fathom::diagnose {
namespace {

// Fewer kernels than this are no forward pass.
constexpr size_t kMinStepKernels = 8;
// A step that the profiler's own work covers by more than this share is no measurement.
constexpr double kMaxOverheadShare = 0.05;

struct Marker {
  uint32_t slice;
  MarkerText text;
  int64_t start_ns, end_ns;
  StepOrigin origin;
};

class Finder {
 public:
  explicit Finder(const TraceIndex& index)
      : index_(index), timeline_(index.timeline()), slices_(index.timeline().slices) {}

  Steps Run() {
    CollectMarkers();
    if (!markers_.empty()) {
      for (size_t gpu = 0; gpu < index_.gpus().size(); ++gpu) FromMarkers(gpu);
      // A machine without GPU rows still has CPU steps.
      if (index_.gpus().empty()) FromMarkersWithoutGpu();
    } else {
      for (size_t gpu = 0; gpu < index_.gpus().size(); ++gpu) {
        if (!FromGraphLaunches(gpu)) FromRepeatedKernel(gpu);
      }
    }
    for (Step& step : steps_.all) Describe(step);
    MakeBuckets();
    return std::move(steps_);
  }

 private:
  void CollectMarkers() {
    std::vector<MarkerText> parsed(timeline_.strings.size());
    std::vector<bool> known(timeline_.strings.size(), false);
    const auto parse = [&](StringId name) -> const MarkerText& {
      if (!known[name]) {
        parsed[name] = ParseMarker(timeline_.Name(name));
        known[name] = true;
      }
      return parsed[name];
    };
    // The CPU's view first; the GPU's copy of the same ranges only where there is no other.
    for (const bool on_gpu : {false, true}) {
      for (uint32_t s = 0; s < slices_.size(); ++s) {
        const Category c = slices_.category[s];
        const bool wanted = on_gpu ? c == Category::kGpuAnnotation
                                   : c == Category::kAnnotation || c == Category::kNvtx;
        if (!wanted || slices_.dur_ns[s] <= 0) continue;
        const MarkerText& text = parse(slices_.name[s]);
        if (text.is_capture && !on_gpu) ++steps_.num_captures;
        if (!text.is_step) continue;
        markers_.push_back({s, text, slices_.start_ns[s], slices_.end_ns(s),
                            c == Category::kNvtx ? StepOrigin::kNvtx : StepOrigin::kAnnotation});
      }
      if (!markers_.empty()) break;
    }
    DropCaptures();
    // Markers that name a phase are worth more than a profiler's own step counter.
    const bool any_phase = std::any_of(markers_.begin(), markers_.end(), [](const Marker& m) {
      return m.text.phase != Phase::kUnknown;
    });
    if (any_phase) {
      std::erase_if(markers_, [](const Marker& m) { return m.text.phase == Phase::kUnknown; });
    }
    std::sort(markers_.begin(), markers_.end(), [](const Marker& a, const Marker& b) {
      return std::tuple(a.start_ns, -a.end_ns) < std::tuple(b.start_ns, -b.end_ns);
    });
    // Two markers of one step (an engine's and a model runner's): the outer one, with what both
    // say.
    std::vector<Marker> outer;
    for (const Marker& m : markers_) {
      if (!outer.empty() && m.start_ns < outer.back().end_ns &&
          timeline_.SliceTrack(m.slice).source == timeline_.SliceTrack(outer.back().slice).source) {
        MarkerText& text = outer.back().text;
        const auto fill = [](double& to, double from) {
          if (std::isnan(to)) to = from;
        };
        fill(text.prompt_tokens, m.text.prompt_tokens);
        fill(text.generated_tokens, m.text.generated_tokens);
        fill(text.batch, m.text.batch);
        continue;
      }
      outer.push_back(m);
    }
    markers_ = std::move(outer);
  }

  // A profiler's step in which a graph is captured, and whatever a capture encloses, serves nobody.
  void DropCaptures() {
    struct Capture {
      SourceId source;
      int64_t start_ns, end_ns;
      bool range;  // a marker, not a call
    };
    std::vector<Capture> captures;
    std::vector<int8_t> is_begin(timeline_.strings.size(), -1);
    for (uint32_t s = 0; s < slices_.size(); ++s) {
      const Category c = slices_.category[s];
      const bool range = c == Category::kAnnotation || c == Category::kNvtx;
      if (!range && c != Category::kRuntime && c != Category::kDriver) continue;
      int8_t& cached = is_begin[slices_.name[s]];
      if (cached < 0) {
        const std::string_view name = timeline_.SliceName(s);
        cached =
            range ? ParseMarker(name).is_capture : name.find("StreamBeginCapture") != name.npos;
      }
      if (cached == 0) continue;
      captures.push_back(
          {timeline_.SliceTrack(s).source, slices_.start_ns[s], slices_.end_ns(s), range});
    }
    if (captures.empty()) return;
    std::erase_if(markers_, [&](const Marker& m) {
      return std::any_of(captures.begin(), captures.end(), [&](const Capture& c) {
        if (timeline_.SliceTrack(m.slice).source != c.source) return false;
        const bool inside = c.range && c.start_ns <= m.start_ns && m.end_ns <= c.end_ns;
        const bool holds =
            m.text.phase == Phase::kUnknown && m.start_ns <= c.start_ns && c.end_ns <= m.end_ns;
        return inside || holds;
      });
    });
  }

  Step StepOf(const Marker& m, size_t gpu) const {
    Step step;
    step.phase = m.text.phase;
    step.origin = m.origin;
    step.gpu = gpu;
    step.source = timeline_.SliceTrack(m.slice).source;
    step.marker = m.slice;
    step.thread = slices_.track[m.slice];
    step.start_ns = m.start_ns;
    step.end_ns = m.end_ns;
    step.prompt_tokens = m.text.prompt_tokens;
    step.generated_tokens = m.text.generated_tokens;
    step.batch = m.text.batch;
    return step;
  }

  // GPU work belongs to the step whose marker encloses its launch: a queue may run it much later.
  void FromMarkers(size_t gpu) {
    const GpuKey key = index_.gpus()[gpu];
    std::vector<std::vector<uint32_t>> work(markers_.size());
    for (const uint32_t s : index_.work(gpu)) {
      const uint32_t launch = index_.launch(s);
      const int64_t t = launch == kNone ? slices_.start_ns[s] : slices_.start_ns[launch];
      auto it = std::upper_bound(markers_.begin(), markers_.end(), t,
                                 [](int64_t time, const Marker& m) { return time < m.start_ns; });
      while (it != markers_.begin()) {
        --it;
        const bool same = timeline_.SliceTrack(it->slice).source == key.source;
        if (same && t < it->end_ns) work[static_cast<size_t>(it - markers_.begin())].push_back(s);
        if (same) break;
      }
    }
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (timeline_.SliceTrack(markers_[i].slice).source != key.source) continue;
      if (work[i].empty()) continue;
      Push(StepOf(markers_[i], gpu), work[i]);
    }
  }

  void FromMarkersWithoutGpu() {
    for (const Marker& m : markers_) Push(StepOf(m, 0), {});
  }

  void Push(Step step, const std::vector<uint32_t>& work) {
    step.first_work = static_cast<uint32_t>(steps_.work.size());
    step.num_work = static_cast<uint32_t>(work.size());
    for (const uint32_t s : work) {
      steps_.work.push_back(s);
      step.end_ns = std::max(step.end_ns, slices_.end_ns(s));
    }
    steps_.all.push_back(step);
  }

  // One graph replay a step: the launches of the most frequent graph size, when there are several.
  bool FromGraphLaunches(size_t gpu) {
    std::map<uint32_t, std::vector<uint32_t>> by_launch;  // launch call -> work
    for (const uint32_t s : index_.work(gpu)) {
      if (index_.launch(s) != kNone) by_launch[index_.launch(s)].push_back(s);
    }
    std::vector<std::pair<int64_t, const std::vector<uint32_t>*>> replays;
    size_t in_graphs = 0;
    for (const auto& [launch, work] : by_launch) {
      const bool opaque = work.size() == 1 && slices_.category[work[0]] == Category::kGraph;
      if (work.size() < kMinStepKernels && !opaque) continue;
      replays.emplace_back(slices_.start_ns[work[0]], &work);
      in_graphs += work.size();
    }
    // A piecewise-captured step has many small graphs between eager kernels: not this case.
    if (replays.size() < 3 || in_graphs * 2 < index_.work(gpu).size()) return false;
    std::sort(replays.begin(), replays.end());
    for (const auto& [start, work] : replays) {
      Step step;
      step.origin = StepOrigin::kGraphLaunch;
      step.source = index_.gpus()[gpu].source;
      step.gpu = gpu;
      step.start_ns = start;
      step.end_ns = start;
      const uint32_t launch = index_.launch(work->front());
      step.thread = slices_.track[launch];
      step.start_ns = std::min(step.start_ns, slices_.start_ns[launch]);
      Push(step, *work);
    }
    return true;
  }

  // An embedding starts a step and a sampling kernel ends one; either repeats once a step, with the
  // same number of kernels in between.
  void FromRepeatedKernel(size_t gpu) {
    const std::span<const uint32_t> work = index_.work(gpu);
    std::map<StringId, std::vector<size_t>> places;
    for (size_t i = 0; i < work.size(); ++i) {
      const KernelClass kind = index_.kind(work[i]);
      if (kind == KernelClass::kSampling || kind == KernelClass::kEmbedding) {
        places[slices_.name[work[i]]].push_back(i);
      }
    }
    const std::vector<size_t>* best = nullptr;
    bool ends_step = false;
    double best_score = 0;
    for (const auto& [name, at] : places) {
      if (at.size() < 4) continue;
      std::vector<size_t> gaps;
      for (size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
      std::vector<size_t> sorted = gaps;
      std::sort(sorted.begin(), sorted.end());
      const size_t median = sorted[sorted.size() / 2];
      if (median < kMinStepKernels) continue;
      const auto regular = std::count_if(gaps.begin(), gaps.end(), [&](size_t g) {
        return g * 10 >= median * 9 && g * 10 <= median * 11;
      });
      const double score = static_cast<double>(regular) / static_cast<double>(gaps.size());
      if (score > 0.6 && score > best_score) {
        best_score = score;
        best = &at;
        ends_step = index_.kind(work[at[0]]) == KernelClass::kSampling;
      }
    }
    if (best == nullptr) return;
    for (size_t i = 1; i < best->size(); ++i) {
      const size_t first = (*best)[i - 1] + (ends_step ? 1 : 0);
      const size_t last = (*best)[i] + (ends_step ? 1 : 0);
      Step step;
      step.origin = StepOrigin::kRepeatedKernel;
      step.source = index_.gpus()[gpu].source;
      step.gpu = gpu;
      const uint32_t launch = index_.launch(work[first]);
      step.start_ns = slices_.start_ns[work[first]];
      step.end_ns = step.start_ns;
      if (launch != kNone) {
        step.thread = slices_.track[launch];
        step.start_ns = std::min(step.start_ns, slices_.start_ns[launch]);
      }
      Push(step, {work.begin() + static_cast<ptrdiff_t>(first),
                  work.begin() + static_cast<ptrdiff_t>(last)});
    }
  }

  // Graph or not, and the phase from shapes where the marker does not say.
  void Describe(Step& step) {
    int64_t total = 0;
    int64_t in_graph = 0;
    std::map<uint32_t, uint32_t> launches;
    for (const uint32_t s : steps_.WorkOf(step)) ++launches[index_.launch(s)];
    for (const uint32_t s : steps_.WorkOf(step)) {
      const int64_t dur = slices_.dur_ns[s];
      total += dur;
      const uint32_t detail = slices_.detail[s];
      const bool marked = slices_.category[s] == Category::kGraph ||
                          (slices_.category[s] == Category::kKernel && detail != kNone &&
                           timeline_.kernels[detail].in_graph);
      const uint32_t launch = index_.launch(s);
      if (marked || (launch != kNone && launches[launch] >= 4)) in_graph += dur;
      if (step.phase == Phase::kUnknown) step.phase = PhaseFromShape(s);
    }
    step.graph = in_graph * 2 > total;
  }

  // Query length of an attention operator: [[batch, heads, queries, dim], ...].
  Phase PhaseFromShape(uint32_t work) const {
    const uint32_t op = index_.op(work);
    if (op == kNone || slices_.detail[op] == kNone) return Phase::kUnknown;
    if (ClassifyOperator(timeline_.SliceName(op)) != KernelClass::kAttention)
      return Phase::kUnknown;
    const std::vector<int64_t> query =
        FirstShape(timeline_.Name(timeline_.ops[slices_.detail[op]].input_dims));
    if (query.size() != 4) return Phase::kUnknown;
    return query[2] == 1 ? Phase::kDecode : Phase::kPrefill;
  }

  static std::vector<int64_t> FirstShape(std::string_view dims) {
    std::vector<int64_t> shape;
    const size_t close = dims.find(']');
    const char* at = dims.data();
    const char* end = at + (close == std::string_view::npos ? 0 : close);
    while (at < end) {
      int64_t value = 0;
      const auto [next, error] = std::from_chars(at, end, value);
      if (error == std::errc()) shape.push_back(value);
      at = error == std::errc() ? next : at + 1;
    }
    return shape;
  }

  void MakeBuckets() {
    std::stable_sort(steps_.all.begin(), steps_.all.end(), [](const Step& a, const Step& b) {
      return std::tuple(a.gpu, a.start_ns) < std::tuple(b.gpu, b.start_ns);
    });
    std::map<std::tuple<size_t, Phase, double, double>, uint32_t> ids;
    for (uint32_t i = 0; i < steps_.all.size(); ++i) {
      Step& step = steps_.all[i];
      const double batch = std::isnan(step.batch) ? -1 : step.batch;
      // Prompts rarely have equal lengths: those within a factor of two are compared.
      const double size = step.phase == Phase::kPrefill && !std::isnan(step.prompt_tokens)
                              ? std::floor(std::log2(std::max(step.prompt_tokens, 1.0)))
                              : -1;
      const auto [it, added] =
          ids.try_emplace({step.gpu, step.phase, step.phase == Phase::kDecode ? batch : -1, size},
                          static_cast<uint32_t>(steps_.buckets.size()));
      if (added) {
        steps_.buckets.push_back({.phase = step.phase, .gpu = step.gpu, .batch = step.batch});
      }
      step.bucket = it->second;
      steps_.buckets[it->second].steps.push_back(i);
    }
    for (Bucket& bucket : steps_.buckets) {
      size_t graphs = 0;
      for (const uint32_t i : bucket.steps) graphs += steps_.all[i].graph ? 1 : 0;
      bucket.graph_expected = graphs * 2 > bucket.steps.size();
      for (size_t k = 0; k < bucket.steps.size(); ++k) {
        Step& step = steps_.all[bucket.steps[k]];
        step.warmup =
            (k == 0 && bucket.steps.size() >= 3) || OverheadShare(step) > kMaxOverheadShare;
      }
      for (const uint32_t i : bucket.steps) {
        if (!steps_.all[i].warmup) bucket.counted.push_back(i);
      }
      // All disturbed: better a disturbed measurement, said so, than none.
      if (bucket.counted.empty()) bucket.counted = bucket.steps;
    }
  }

  // Of the step's wall time, what the profiler's own work covers.
  double OverheadShare(const Step& step) {
    if (overhead_.empty()) {
      overhead_.resize(timeline_.sources.size());
      for (uint32_t s = 0; s < slices_.size(); ++s) {
        if (slices_.category[s] != Category::kOverhead) continue;
        overhead_[timeline_.SliceTrack(s).source].push_back(
            {slices_.start_ns[s], slices_.end_ns(s)});
      }
      for (std::vector<Interval>& list : overhead_) Merge(list);
    }
    const int64_t covered = Covered(overhead_[step.source], step.start_ns, step.end_ns);
    return step.wall_ns() > 0 ? static_cast<double>(covered) / static_cast<double>(step.wall_ns())
                              : 0;
  }

  const TraceIndex& index_;
  const Timeline& timeline_;
  const Slices& slices_;
  Steps steps_;
  std::vector<Marker> markers_;
  std::vector<std::vector<Interval>> overhead_;  // [num_sources], merged
};

}  // namespace

const Bucket* Steps::Main(Phase phase) const {
  const Bucket* best = nullptr;
  for (const Bucket& bucket : buckets) {
    if (bucket.phase == phase && (best == nullptr || bucket.steps.size() > best->steps.size())) {
      best = &bucket;
    }
  }
  return best;
}

Steps FindSteps(const TraceIndex& index) { return Finder(index).Run(); }

}  // namespace fathom::diagnose
