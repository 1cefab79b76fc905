#include "diagnose/understand/trace_index.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace fathom::diagnose {
namespace {

// (source, id) -> slice, as a sorted list: a trace has as many calls as kernels.
class IdMap {
 public:
  void Add(SourceId source, uint64_t id, uint32_t slice) {
    entries_.push_back({source, id, slice});
  }
  void Seal() { std::sort(entries_.begin(), entries_.end()); }
  // The first slice with that id.
  uint32_t Find(SourceId source, uint64_t id) const {
    const auto it = std::lower_bound(entries_.begin(), entries_.end(), std::tuple(source, id, 0U));
    if (it == entries_.end() || std::get<0>(*it) != source || std::get<1>(*it) != id) return kNone;
    return std::get<2>(*it);
  }

 private:
  std::vector<std::tuple<SourceId, uint64_t, uint32_t>> entries_;
};

bool IsApiCall(Category c) { return c == Category::kRuntime || c == Category::kDriver; }

// Whether a better-informed class may replace what the name said.
bool IsVague(KernelClass c) {
  switch (c) {
    case KernelClass::kElementwise:
    case KernelClass::kReduction:
    case KernelClass::kCopy:
    case KernelClass::kCat:
    case KernelClass::kEmbedding:
    case KernelClass::kUnclassified:
      return true;
    default:
      return false;
  }
}

// Frames and operators further out than this belong to the model, not to the kernel.
constexpr int kMaxAncestors = 24;

}  // namespace

TraceIndex::TraceIndex(const Timeline& timeline) : timeline_(timeline) {
  const size_t n = timeline.slices.size();
  parent_.assign(n, kNone);
  link_.assign(n, kNone);
  external_op_.assign(n, kNone);
  kind_.assign(n, KernelClass::kUnclassified);
  LinkThreads();
  LinkLaunches();
  Classify();
}

void TraceIndex::LinkThreads() {
  const Slices& slices = timeline_.slices;
  by_track_.resize(timeline_.tracks.size());
  for (uint32_t s = 0; s < slices.size(); ++s) by_track_[slices.track[s]].push_back(s);
  const auto earlier = [&](uint32_t a, uint32_t b) {
    if (slices.start_ns[a] != slices.start_ns[b]) return slices.start_ns[a] < slices.start_ns[b];
    if (slices.dur_ns[a] != slices.dur_ns[b]) return slices.dur_ns[a] > slices.dur_ns[b];
    return a < b;
  };
  std::vector<uint32_t> open;
  for (TrackId track = 0; track < timeline_.tracks.size(); ++track) {
    std::vector<uint32_t>& order = by_track_[track];
    std::sort(order.begin(), order.end(), earlier);
    if (timeline_.tracks[track].kind != TrackKind::kCpuThread) continue;
    open.clear();
    for (const uint32_t s : order) {
      while (!open.empty() && slices.end_ns(open.back()) <= slices.start_ns[s]) open.pop_back();
      if (!open.empty()) parent_[s] = open.back();
      if (slices.dur_ns[s] > 0) open.push_back(s);
    }
  }
}

void TraceIndex::LinkLaunches() {
  const Slices& slices = timeline_.slices;
  IdMap calls;
  IdMap operators;
  for (uint32_t s = 0; s < slices.size(); ++s) {
    const SourceId source = timeline_.SliceTrack(s).source;
    if (IsApiCall(slices.category[s]) && slices.correlation[s] != 0) {
      calls.Add(source, slices.correlation[s], s);
    } else if (slices.category[s] == Category::kCpuOp && slices.external[s] != 0) {
      operators.Add(source, slices.external[s], s);
    }
  }
  calls.Seal();
  operators.Seal();
  for (uint32_t s = 0; s < slices.size(); ++s) {
    if (!IsGpuWork(slices.category[s])) continue;
    const Track& track = timeline_.SliceTrack(s);
    if (slices.correlation[s] != 0) link_[s] = calls.Find(track.source, slices.correlation[s]);
    if (slices.external[s] != 0) external_op_[s] = operators.Find(track.source, slices.external[s]);
    const GpuKey key{track.source, track.device};
    auto it = std::find(gpus_.begin(), gpus_.end(), key);
    if (it == gpus_.end()) {
      gpus_.push_back(key);
      work_.emplace_back();
      it = gpus_.end() - 1;
    }
    work_[static_cast<size_t>(it - gpus_.begin())].push_back(s);
  }
  for (std::vector<uint32_t>& work : work_) {
    std::sort(work.begin(), work.end(), [&](uint32_t a, uint32_t b) {
      return std::tuple(slices.start_ns[a], a) < std::tuple(slices.start_ns[b], b);
    });
  }
}

uint32_t TraceIndex::op(uint32_t slice) const {
  const auto is_op = [&](uint32_t s) { return timeline_.slices.category[s] == Category::kCpuOp; };
  const uint32_t around = link_[slice] == kNone ? kNone : FindAncestor(link_[slice], is_op);
  return around != kNone ? around : external_op_[slice];
}

void TraceIndex::Classify() {
  const Slices& slices = timeline_.slices;
  std::vector<KernelClass> by_name(timeline_.strings.size(), KernelClass::kUnclassified);
  std::vector<bool> known(timeline_.strings.size(), false);
  const auto cached = [&](StringId name, auto&& classify) {
    if (!known[name]) {
      by_name[name] = classify(timeline_.Name(name));
      known[name] = true;
    }
    return by_name[name];
  };
  for (const std::vector<uint32_t>& work : work_) {
    for (const uint32_t s : work) {
      switch (slices.category[s]) {
        case Category::kMemcpy: {
          const uint32_t detail = slices.detail[s];
          const CopyKind copy =
              detail == kNone ? CopyKind::kUnknown : timeline_.copies[detail].kind;
          kind_[s] = copy == CopyKind::kDeviceToDevice ? KernelClass::kMemcpyDevice
                     : copy == CopyKind::kPeer         ? KernelClass::kCollective
                                                       : KernelClass::kMemcpyHost;
          continue;
        }
        case Category::kMemset:
          kind_[s] = KernelClass::kMemset;
          continue;
        case Category::kGraph:
          kind_[s] = KernelClass::kGraph;
          continue;
        default:
          break;
      }
      KernelClass kind = cached(slices.name[s], ClassifyKernelName);
      if (IsVague(kind)) {
        // The innermost frame or operator that says something.
        int steps = 0;
        const uint32_t from = link_[s] != kNone ? link_[s] : external_op_[s];
        for (uint32_t a = from; a != kNone && steps < kMaxAncestors; a = parent_[a], ++steps) {
          KernelClass said = KernelClass::kUnclassified;
          if (slices.category[a] == Category::kPython) {
            said = cached(slices.name[a], ClassifyPythonFrame);
          } else if (slices.category[a] == Category::kCpuOp) {
            said = cached(slices.name[a], ClassifyOperator);
            // A pointwise kernel of an attention or matrix operator only prepares its inputs, and a
            // copy is asked for by operators of every kind.
            if (said == KernelClass::kAttention || said == KernelClass::kGemm) {
              said = KernelClass::kUnclassified;
            }
            if (said == KernelClass::kCopy && kind != KernelClass::kUnclassified) continue;
          }
          if (said != KernelClass::kUnclassified) {
            kind = said;
            break;
          }
        }
      }
      kind_[s] = kind;
    }
  }
}

std::string TraceIndex::PythonStack(uint32_t slice, size_t depth) const {
  std::string text;
  size_t frames = 0;
  const uint32_t from = link_[slice] != kNone ? link_[slice] : slice;
  for (uint32_t s = from; s != kNone && frames < depth; s = parent_[s]) {
    if (timeline_.slices.category[s] != Category::kPython) continue;
    const std::string_view name = timeline_.SliceName(s);
    if (name.starts_with("<built-in")) continue;
    text += text.empty() ? " " : " <- ";
    text += name;
    ++frames;
  }
  return text;
}

}  // namespace fathom::diagnose
