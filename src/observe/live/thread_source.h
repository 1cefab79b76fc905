#pragma once
// Where the threads run that feed the GPUs: of each process that uses a GPU, the threads that used
// CPU time since the reading before, told apart by the NUMA node of the CPU they ran on last
// (/proc/PID/task/TID/stat, field 39): the GPU's or another. Which of them launch work, the kernel
// does not say. A process whose GPUs are on several nodes, or on an unknown one, is left out.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/live/numa_topology.h"
#include "observe/live/source.h"

namespace fathom::observe {

struct GpuProcess {
  int pid = 0;
  std::vector<int> gpus;  // indexes
};

struct ThreadSourceOptions {
  std::vector<int> node_of_gpu;  // [GPU index]; -1: unknown
  // The processes that use a GPU; nothing when the driver does not list them.
  std::function<std::optional<std::vector<int>>(int gpu)> list_processes;
  int pid = 0;       // this process and its descendants only; 0: all that are listed
  std::string root;  // in front of /proc and /sys (tests)
};

class ThreadSource final : public Source {
 public:
  explicit ThreadSource(ThreadSourceOptions options);
  std::string_view name() const override { return "threads"; }
  Status Open() override;
  void Read(std::vector<event::Sample>& out) override;
  // CPU times tick at 100 Hz, and a process may have hundreds of threads.
  int min_period_ms() const override { return 50; }

  // Whether the driver's list says which processes use a GPU. It does not inside a container: its
  // ids are those of the host. There `pid` alone counts, as a user of all GPUs.
  bool listed() const { return listed_; }

 private:
  using ThreadId = std::pair<int, int>;  // process, thread

  void FindProcesses();
  bool IsWatched(int pid) const;
  std::optional<int> NodeOf(const GpuProcess& process) const;
  // Counts the working threads of a process on its GPUs' node and elsewhere.
  void CountThreads(const GpuProcess& process, int node, std::map<ThreadId, double>& ticks,
                    int* near, int* far) const;

  ThreadSourceOptions options_;
  NumaTopology topology_;
  bool listed_ = false;
  std::vector<GpuProcess> processes_;
  int64_t found_ns_ = 0;              // when processes_ was made
  std::map<ThreadId, double> ticks_;  // CPU time at the reading before
};

}  // namespace fathom::observe
