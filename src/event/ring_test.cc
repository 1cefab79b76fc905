#include "event/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

namespace fathom::event {
namespace {

TEST(Ring, KeepsOrderAndCountsDrops) {
  Ring ring(4);
  for (uint64_t i = 0; i < 6; ++i) ring.Push({.value = i});
  EXPECT_EQ(ring.dropped(), 2u);
  EXPECT_EQ(ring.accepted(), 4u);
  std::array<Event, 8> out;
  ASSERT_EQ(ring.Drain(out), 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(out[i].value, i);
  EXPECT_EQ(ring.Drain(out), 0u);
  EXPECT_TRUE(ring.Push({.value = 9}));
}

TEST(Ring, ManyProducersLoseNothingThatWasAccepted) {
  Ring ring(1 << 10);
  constexpr uint64_t kPerProducer = 20000;
  std::atomic<uint64_t> accepted{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> producers;
  for (uint64_t p = 0; p < 3; ++p) {
    producers.emplace_back([&, p] {
      for (uint64_t i = 0; i < kPerProducer; ++i) {
        if (ring.Push({.request_id = p, .value = i})) accepted++;
      }
    });
  }
  std::array<int64_t, 3> last = {-1, -1, -1};
  uint64_t received = 0;
  std::thread consumer([&] {
    std::array<Event, 64> out;
    for (;;) {
      const bool finished = done.load();
      const size_t n = ring.Drain(out);
      for (size_t i = 0; i < n; ++i) {  // each producer's events arrive in its order
        ASSERT_GT(static_cast<int64_t>(out[i].value), last[out[i].request_id]);
        last[out[i].request_id] = static_cast<int64_t>(out[i].value);
      }
      received += n;
      if (finished && n == 0) return;
    }
  });
  for (auto& p : producers) p.join();
  done = true;
  consumer.join();
  EXPECT_EQ(received, accepted.load());
  EXPECT_EQ(accepted.load() + ring.dropped(), 3 * kPerProducer);
}

TEST(Event, EveryValueHasItsOwnName) {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Kind::kCount); ++i) {
    EXPECT_TRUE(names.insert(NameOf(static_cast<Kind>(i))).second);
  }
  names.clear();
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    EXPECT_TRUE(names.insert(NameOf(static_cast<Op>(i))).second);
  }
  EXPECT_EQ(NameOf(static_cast<Op>(200)), "unknown");
  EXPECT_EQ(NameOf(MissCause::kTenant), "tenant");
}

}  // namespace
}  // namespace fathom::event
