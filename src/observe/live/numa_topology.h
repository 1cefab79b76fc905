#pragma once
// Which CPUs belong to which NUMA node (/sys/devices/system/node).
#include <map>
#include <string>
#include <vector>

namespace fathom::observe {

struct NumaTopology {
  std::vector<int> nodes;          // ids, ascending, also those with memory alone
  std::map<int, int> node_of_cpu;  // [cpu] -> node

  // Nodes that CPUs belong to; 0: the machine does not say.
  int num_cpu_nodes() const;

  // `root` is put in front of /sys (tests).
  static NumaTopology Read(const std::string& root = "");
};

}  // namespace fathom::observe
