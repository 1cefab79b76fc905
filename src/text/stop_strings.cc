#include "text/stop_strings.h"

#include <utility>

namespace fathom::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    sizes_.push_back(stops[i].size());
    uint32_t at = 0;
    for (const char c : stops[i]) {
      uint32_t next = Child(at, c);
      if (next == 0) {
        next = static_cast<uint32_t>(nodes_.size());
        nodes_[at].children.emplace_back(c, next);
        nodes_.emplace_back();
        nodes_[next].depth = nodes_[at].depth + 1;
      }
      at = next;
    }
    if (at != 0 && nodes_[at].stop < 0) nodes_[at].stop = static_cast<int32_t>(i);
  }
  // Breadth first: a node's suffix is shorter and so already known.
  std::vector<uint32_t> queue;
  for (const auto& [c, child] : nodes_[0].children) queue.push_back(child);
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t parent = queue[i];
    for (const auto& [c, child] : nodes_[parent].children) {
      uint32_t fail = nodes_[parent].fail;
      while (fail != 0 && Child(fail, c) == 0) fail = nodes_[fail].fail;
      nodes_[child].fail = Child(fail, c);
      if (nodes_[child].stop < 0) nodes_[child].stop = nodes_[nodes_[child].fail].stop;
      queue.push_back(child);
    }
  }
}

uint32_t StopMatcher::Child(uint32_t node, char c) const {
  for (const auto& [key, child] : nodes_[node].children) {
    if (key == c) return child;
  }
  return 0;
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  Result result;
  if (stopped_) return result;
  for (const char c : text) {
    held_ += c;
    while (at_ != 0 && Child(at_, c) == 0) at_ = nodes_[at_].fail;
    at_ = Child(at_, c);
    if (nodes_[at_].stop >= 0) {
      stopped_ = true;
      result.stopped = nodes_[at_].stop;
      held_.resize(held_.size() - sizes_[static_cast<size_t>(result.stopped)]);
      result.text = std::exchange(held_, {});
      return result;
    }
  }
  result.text = held_.substr(0, held_.size() - nodes_[at_].depth);
  held_.erase(0, result.text.size());
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace fathom::text
