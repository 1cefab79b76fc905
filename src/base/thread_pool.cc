#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace fathom {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kActiveMask = kOpen - 1;
constexpr uint64_t kGeneration = uint64_t{1} << 17;

thread_local bool t_inside = false;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

Result<int> ThreadsFor(int asked) {
  if (asked < 0 || asked > kMaxThreads) {
    return Err(Code::kInvalidArgument,
               "--threads {}: expected 0 (all that this process may use: {}) to {}", asked,
               UsableCpus(), kMaxThreads);
  }
  return asked == 0 ? UsableCpus() : asked;
}

ThreadPool::ThreadPool(int num_threads, int spin_us) : spin_us_(spin_us) {
  FATHOM_CHECK(num_threads >= 1 && num_threads <= kMaxThreads, "num_threads {}", num_threads);
  workers_.reserve(static_cast<size_t>(num_threads) - 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  state_.fetch_add(kGeneration);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunPieces(int worker) {
  t_inside = true;
  for (;;) {
    const int64_t begin = job_.next.fetch_add(job_.grain, std::memory_order_relaxed);
    if (begin >= job_.count) break;
    (*job_.fn)(begin, std::min(begin + job_.grain, job_.count), worker);
  }
  t_inside = false;
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen_generation = 0;
  for (;;) {
    uint64_t state = state_.load();
    const int64_t spin_until = NowNs() + int64_t{spin_us_} * 1000;
    while (state / kGeneration == seen_generation && NowNs() < spin_until) {
      for (int i = 0; i < 32; ++i) Pause();
      state = state_.load();
    }
    while (state / kGeneration == seen_generation) {
      state_.wait(state);
      state = state_.load();
    }
    if (stop_.load()) return;
    while ((state & kOpen) != 0 && !state_.compare_exchange_weak(state, state + 1)) {
    }
    seen_generation = state / kGeneration;
    if ((state & kOpen) == 0) continue;
    RunPieces(worker);
    state_.fetch_sub(1);
  }
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             FunctionRef<void(int64_t, int64_t, int)> fn) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || t_inside || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      fn(begin, std::min(begin + grain, count), 0);
    }
    return;
  }
  const std::lock_guard lock(callers_);
  job_.fn = &fn;
  job_.count = count;
  job_.grain = grain;
  job_.next.store(0, std::memory_order_relaxed);
  state_.store((state_.load() / kGeneration + 1) * kGeneration | kOpen);
  state_.notify_all();
  RunPieces(0);
  state_.fetch_and(~kOpen);  // nobody enters from here on
  while ((state_.load() & kActiveMask) != 0) Pause();
}

}  // namespace fathom
