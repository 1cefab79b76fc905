#pragma once
// Who contains whom on a thread, which call launched which kernel, which operator asked for it, and
// what each piece of GPU work does. Built once from a timeline; rules only read.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "diagnose/timeline.h"
#include "diagnose/understand/classify.h"

namespace fathom::diagnose {

// One GPU of one source: steps are found and accounted for on each apart.
struct GpuKey {
  SourceId source = 0;
  int32_t device = -1;
  bool operator==(const GpuKey&) const = default;
};

class TraceIndex {
 public:
  explicit TraceIndex(const Timeline& timeline);

  const Timeline& timeline() const { return timeline_; }

  // The innermost slice of the same CPU thread that contains this one; kNone when outermost.
  uint32_t parent(uint32_t slice) const { return parent_[slice]; }
  // The API call that launched this GPU work; kNone when the trace does not say.
  uint32_t launch(uint32_t slice) const { return link_[slice]; }
  // The innermost operator around the launch, or the one that the trace names; kNone.
  uint32_t op(uint32_t slice) const;
  // What the work does; kUnclassified for slices that are not GPU work.
  KernelClass kind(uint32_t slice) const { return kind_[slice]; }

  std::span<const GpuKey> gpus() const { return gpus_; }
  // All work of one GPU (kernels, copies, memsets, opaque graphs) in order of its start.
  std::span<const uint32_t> work(size_t gpu) const { return work_[gpu]; }
  // All slices of one CPU thread in order of their start, containers first.
  std::span<const uint32_t> thread(TrackId track) const { return by_track_[track]; }

  // Whether a slice or one of its ancestors, innermost first, satisfies the test.
  template <class Test>
  uint32_t FindAncestor(uint32_t slice, Test&& test) const {
    for (uint32_t s = slice; s != kNone; s = parent_[s]) {
      if (test(s)) return s;
    }
    return kNone;
  }
  // " modeling_llama.py(270): repeat_kv <- eager_attention_forward": the Python frames around a
  // slice, innermost first, at most `depth`, as they go on a sentence; empty without stacks.
  std::string PythonStack(uint32_t slice, size_t depth) const;

 private:
  void LinkThreads();
  void LinkLaunches();
  void Classify();

  const Timeline& timeline_;
  std::vector<uint32_t> parent_;       // [num_slices]
  std::vector<uint32_t> link_;         // [num_slices] GPU work -> API call
  std::vector<uint32_t> external_op_;  // [num_slices] GPU work -> operator by external id
  std::vector<KernelClass> kind_;      // [num_slices]
  std::vector<std::vector<uint32_t>> by_track_;
  std::vector<GpuKey> gpus_;
  std::vector<std::vector<uint32_t>> work_;
};

}  // namespace fathom::diagnose
