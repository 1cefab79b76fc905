#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

namespace fathom {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads, 5);
    for (int64_t count : {0, 1, 2, 7, 64, 1001}) {
      for (int64_t grain : {1, 3, 64}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
          ASSERT_GE(worker, 0);
          ASSERT_LT(worker, threads);
          ASSERT_LE(end - begin, grain);
          for (int64_t i = begin; i < end; ++i) visits[static_cast<size_t>(i)]++;
        });
        for (const auto& v : visits) ASSERT_EQ(v.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, UsableCpusFollowTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(UsableCpus(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ThreadPool, ThreadsAskedFor) {
  EXPECT_EQ(*ThreadsFor(0), UsableCpus());
  EXPECT_EQ(*ThreadsFor(3), 3);
  EXPECT_EQ(*ThreadsFor(kMaxThreads), kMaxThreads);
  for (const int asked : {-1, kMaxThreads + 1, 100000}) {
    EXPECT_NE(ThreadsFor(asked).error().message.find("to 1024"), std::string::npos) << asked;
  }
}

TEST(ThreadPool, NestedCallsRunInline) {
  ThreadPool pool(3, 5);
  std::atomic<int> sum{0};
  pool.ParallelFor(8, 1, [&](int64_t, int64_t, int) {
    pool.ParallelFor(4, 1, [&](int64_t, int64_t, int) { sum++; });
  });
  EXPECT_EQ(sum.load(), 32);
}

TEST(ThreadPool, OutsideCallersTakeTurns) {
  ThreadPool pool(2, 5);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        pool.ParallelFor(10, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
      }
    });
  }
  for (auto& c : callers) c.join();
  EXPECT_EQ(sum.load(), 4 * 300 * 45);
}

}  // namespace
}  // namespace fathom
