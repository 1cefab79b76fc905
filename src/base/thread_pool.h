#pragma once
// The one thread pool. Work is cut into index ranges that any worker may take; results must not
// depend on who took which (each index writes its own output), so the schedule cannot change bits.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"

namespace fathom {

// The CPUs that this process may run on: its affinity mask (taskset, a container's cpuset), not
// what the machine has.
int UsableCpus();

// What --threads asks for: 0 is UsableCpus(); an error beyond kMaxThreads.
inline constexpr int kMaxThreads = 1024;
Result<int> ThreadsFor(int asked);

class ThreadPool {
 public:
  // num_threads counts the caller: 1 starts no thread. spin_us: how long an idle worker polls
  // before it sleeps; ops of one step follow each other within microseconds.
  explicit ThreadPool(int num_threads, int spin_us = 50);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(begin, end, worker) over [0, count) in pieces of at most `grain`, worker in
  // [0, num_threads). Returns when all are done. Called from inside a piece, it runs inline;
  // two outside callers take turns.
  void ParallelFor(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> fn);

 private:
  struct Job {
    FunctionRef<void(int64_t, int64_t, int)>* fn = nullptr;
    int64_t count = 0;
    int64_t grain = 1;
    std::atomic<int64_t> next{0};
  };

  void WorkerLoop(int worker);
  void RunPieces(int worker);

  // generation << 17 | open << 16 | workers inside: a worker enters only while the job is open,
  // so a late riser never touches a finished job.
  std::atomic<uint64_t> state_{0};
  Job job_;
  std::mutex callers_;
  std::atomic<bool> stop_{false};
  int spin_us_;
  std::vector<std::thread> workers_;
};

}  // namespace fathom
