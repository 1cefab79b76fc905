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
  int64_t (*now_ns)() = NowNs;
};

class ThreadSource final : public Source {
 public:
  explicit ThreadSource(ThreadSourceOptions options);
  std::string_view name() const override { return "threads"; }
  Status Open() override;
  void Read(std::vector<event::Sample>& out) override;
  // CPU times tick at 100 Hz. Of hundreds of threads that a process may have, those that have not
  // worked for a second are read once a second.
  int min_period_ms() const override { return 50; }

  // Whether the driver's list says which processes use a GPU. It does not inside a container: its
  // ids are those of the host. There `pid` alone counts, as a user of all GPUs.
  bool listed() const { return listed_; }

 private:
  using ThreadId = std::pair<int, int>;  // process, thread
  struct Thread {
    double ticks = 0;       // CPU time at the last reading
    int64_t worked_ns = 0;  // when it was last seen to have used some, or first seen
  };
  struct Counts {
    int near = 0, far = 0;
  };

  void FindProcesses();
  bool IsWatched(int pid) const;
  std::optional<int> NodeOf(const GpuProcess& process) const;
  // Adds the threads of a process that nobody has seen yet.
  void FindThreads(const GpuProcess& process, int64_t now_ns);
  // Reads a thread and counts it if it has worked. False when it has ended.
  bool ReadThread(const ThreadId& id, Thread& thread, int node, int64_t now_ns,
                  Counts& counts) const;

  ThreadSourceOptions options_;
  NumaTopology topology_;
  bool listed_ = false;
  std::vector<GpuProcess> processes_;
  std::map<int, int> node_of_;  // process -> node of its GPUs, where they are on one
  int64_t found_ns_ = 0;        // when processes and threads were last looked for
  std::map<ThreadId, Thread> threads_;
};

}  // namespace fathom::observe
