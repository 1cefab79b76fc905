#include "observe/recorder.h"

#include <gtest/gtest.h>

#include <memory>

namespace fathom::observe {
namespace {

struct Counter : Consumer {
  void Consume(std::span<const event::Event> events) override {
    for (const auto& e : events) in_order = in_order && e.value == seen++;
  }
  void OnDropped(uint64_t count) override { dropped += count; }
  uint64_t seen = 0, dropped = 0;
  bool in_order = true;
};

TEST(Recorder, FlushSeesEverythingPushedBefore) {
  event::Ring ring(1 << 14);
  Counter counter;
  Recorder recorder(&ring, {&counter}, std::chrono::hours(1));
  for (uint64_t i = 0; i < 10000; ++i) ring.Push({.value = i});
  recorder.Flush();
  EXPECT_EQ(counter.seen, 10000u);
  EXPECT_TRUE(counter.in_order);
}

TEST(Recorder, DrainsPeriodicallyAtTheEndAndReportsDrops) {
  event::Ring ring(4);
  Counter counter;
  {
    Recorder recorder(&ring, {&counter}, std::chrono::hours(1));
    for (uint64_t i = 0; i < 7; ++i) ring.Push({.value = i});
  }
  EXPECT_EQ(counter.seen, 4u);
  EXPECT_EQ(counter.dropped, 3u);
}

TEST(Recorder, AFlushLeavesNothingOfThoseBefore) {
  event::Ring ring(4);
  Recorder recorder(&ring, {}, std::chrono::hours(1));
  for (int i = 0; i < 1000; ++i) {
    auto held = std::make_shared<int>(i);
    const std::weak_ptr<int> watched = held;
    recorder.FlushThen([held = std::move(held)] {});
    recorder.Flush();
    ASSERT_TRUE(watched.expired());
  }
}

}  // namespace
}  // namespace fathom::observe
