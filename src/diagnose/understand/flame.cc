#include "diagnose/understand/flame.h"

#include <algorithm>
#include <unordered_map>

namespace fathom::diagnose {
namespace {

// A tree under construction: nodes by parent and name.
class Tree {
 public:
  uint32_t Child(uint32_t parent, StringId name) {
    const uint64_t key = (uint64_t{parent} << 32) | name;
    const auto [it, added] = ids_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
    if (added) {
      nodes_.push_back({name, 0, {}});
      nodes_[parent].children.push_back(it->second);
    }
    return it->second;
  }
  void Add(uint32_t node, double value) { nodes_[node].value += value; }
  double& value(uint32_t node) { return nodes_[node].value; }

  FlameNode Build(const Timeline& timeline, uint32_t node, double least) const {
    const Node& n = nodes_[node];
    FlameNode out{.name = node == 0 ? "all" : std::string(timeline.Name(n.name)),
                  .value = n.value,
                  .children = {}};
    for (const uint32_t child : n.children) {
      if (nodes_[child].value >= least) out.children.push_back(Build(timeline, child, least));
    }
    std::stable_sort(out.children.begin(), out.children.end(),
                     [](const FlameNode& a, const FlameNode& b) { return a.value > b.value; });
    return out;
  }

 private:
  struct Node {
    StringId name = 0;
    double value = 0;
    std::vector<uint32_t> children;
  };
  std::vector<Node> nodes_ = {{}};
  std::unordered_map<uint64_t, uint32_t> ids_;
};

// Of perf's clocks a period is nanoseconds; of a counter it is events.
bool IsClock(std::string_view event) {
  return event.starts_with("cpu-clock") || event.starts_with("task-clock");
}

// What the samples' periods count; several events share no unit.
std::string UnitOf(const Timeline& t) {
  const StringId first = t.stack_samples.front().event;
  const bool same = std::all_of(t.stack_samples.begin(), t.stack_samples.end(),
                                [&](const StackSample& s) { return s.event == first; });
  const std::string_view event = t.Name(first);
  if (!same || event.empty()) return "samples";
  return IsClock(event) ? "ms" : std::string(event);
}

void AddSamples(const Timeline& t, std::string_view unit, Tree& tree) {
  const double scale = unit == "ms" ? 1e-6 : 1;
  std::vector<uint32_t> path;
  for (const StackSample& sample : t.stack_samples) {
    path.clear();
    for (uint32_t n = sample.stack; n != kNone; n = t.stack_nodes[n].parent) path.push_back(n);
    // Periods of different events do not add up: then each sample counts once.
    const double weight =
        unit == "samples" ? 1 : static_cast<double>(std::max<uint64_t>(sample.period, 1)) * scale;
    uint32_t node = 0;
    tree.Add(node, weight);
    for (auto it = path.rbegin(); it != path.rend(); ++it) {
      node = tree.Child(node, t.stack_nodes[*it].symbol);
      tree.Add(node, weight);
    }
  }
}

// Python calls nest on their thread: a call's node is a child of its caller's.
void AddPython(const TraceIndex& index, Tree& tree) {
  const Timeline& t = index.timeline();
  std::unordered_map<uint32_t, uint32_t> node_of;  // slice -> node
  for (TrackId track = 0; track < t.tracks.size(); ++track) {
    for (const uint32_t s : index.thread(track)) {
      if (t.slices.category[s] != Category::kPython) continue;
      // Times are rounded: a call may seem to begin inside one that has just returned.
      uint32_t caller = index.parent(s);
      while (caller != kNone && (t.slices.category[caller] != Category::kPython ||
                                 t.slices.end_ns(caller) < t.slices.end_ns(s))) {
        caller = index.parent(caller);
      }
      const auto parent = caller == kNone ? node_of.end() : node_of.find(caller);
      const uint32_t above = parent == node_of.end() ? 0 : parent->second;
      const uint32_t node = tree.Child(above, t.slices.name[s]);
      node_of[s] = node;
      const double ms = static_cast<double>(t.slices.dur_ns[s]) / 1e6;
      tree.Add(node, ms);
      if (above == 0) tree.Add(0, ms);
    }
  }
}

}  // namespace

Flame MakeFlame(const TraceIndex& index, double least_share) {
  const Timeline& timeline = index.timeline();
  Flame flame;
  Tree tree;
  if (!timeline.stack_samples.empty()) {
    flame.unit = UnitOf(timeline);
    AddSamples(timeline, flame.unit, tree);
  } else {
    flame.unit = "ms";
    AddPython(index, tree);
  }
  if (tree.value(0) > 0) flame.root = tree.Build(timeline, 0, least_share * tree.value(0));
  return flame;
}

}  // namespace fathom::diagnose
