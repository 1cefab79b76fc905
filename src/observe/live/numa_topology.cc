#include "observe/live/numa_topology.h"

#include <fmt/format.h>

#include <set>

#include "observe/live/proc_file.h"

namespace fathom::observe {

int NumaTopology::num_cpu_nodes() const {
  std::set<int> with_cpus;
  for (const auto& [cpu, node] : node_of_cpu) with_cpus.insert(node);
  return static_cast<int>(with_cpus.size());
}

NumaTopology NumaTopology::Read(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  NumaTopology topology;
  topology.nodes = ParseIdList(ReadProcFile(folder + "/online"));
  for (const int node : topology.nodes) {
    const std::string path = fmt::format("{}/node{}/cpulist", folder, node);
    for (const int cpu : ParseIdList(ReadProcFile(path))) topology.node_of_cpu[cpu] = node;
  }
  return topology;
}

}  // namespace fathom::observe
