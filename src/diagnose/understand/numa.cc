#include "diagnose/understand/numa.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "diagnose/understand/signals.h"

namespace fathom::diagnose {

std::vector<GpuThreads> FindGpuThreads(const Timeline& timeline) {
  std::map<std::pair<SourceId, int32_t>, GpuThreads> by_gpu;
  const auto add = [&](Signal signal, double GpuThreads::*count) {
    for (const SignalSeries& s : FindSignal(timeline, signal)) {
      by_gpu[{s.source, s.device}].*count += std::accumulate(s.value.begin(), s.value.end(), 0.0);
    }
  };
  add(Signal::kGpuThreadsNear, &GpuThreads::near);
  add(Signal::kGpuThreadsFar, &GpuThreads::far);
  std::vector<GpuThreads> list;
  for (auto& [key, threads] : by_gpu) {
    if (threads.readings() <= 0 || timeline.sources[key.first].numa_nodes == 1) continue;
    threads.gpu = key.second;
    for (const DeviceInfo& device : timeline.sources[key.first].devices) {
      if (device.id == threads.gpu) threads.node = device.numa_node;
    }
    if (threads.node < 0) continue;  // far from what cannot be said
    threads.listed = timeline.sources[key.first].threads_listed;
    list.push_back(threads);
  }
  return list;
}

int NumaNodes(const Timeline& timeline) {
  int nodes = 0;
  for (const Source& source : timeline.sources) nodes = std::max(nodes, source.numa_nodes);
  return nodes;
}

}  // namespace fathom::diagnose
