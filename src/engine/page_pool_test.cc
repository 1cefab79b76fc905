#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace fathom::engine {
namespace {

TEST(PagePool, HandsOutEachPageOnce) {
  PagePool pool(3);
  std::vector<bool> seen(3);
  for (int i = 0; i < 3; ++i) {
    const PageId page = pool.Allocate();
    ASSERT_NE(page, kNoPage);
    EXPECT_FALSE(seen[page]);
    seen[page] = true;
  }
  EXPECT_EQ(pool.Allocate(), kNoPage);
  EXPECT_EQ(pool.used(), 3);
}

TEST(PagePool, AKeptPageSurvivesItsLastReference) {
  PagePool pool(1);
  const PageId page = pool.Allocate();
  pool.Keep(page);
  pool.Ref(page);
  EXPECT_FALSE(pool.Unref(page));
  EXPECT_TRUE(pool.Unref(page));
  EXPECT_EQ(pool.cached(), 1);
  EXPECT_EQ(pool.Allocate(), kNoPage);
  pool.Drop(page);
  EXPECT_EQ(pool.free(), 1);
}

TEST(PagePoolDeathTest, AFreePageCannotBeReferenced) {
  PagePool pool(1);
  EXPECT_DEATH(pool.Ref(0), "is free and was referenced");
  EXPECT_DEATH(pool.Unref(0), "no reference to give back");
}

TEST(PagePool, FreeCachedAndUsedAlwaysMakeTheTotal) {
  std::mt19937 random(7);
  PagePool pool(40);
  std::vector<PageId> held;
  std::vector<PageId> kept;
  for (int i = 0; i < 20'000; ++i) {
    switch (random() % 5) {
      case 0:
      case 1:
        if (const PageId page = pool.Allocate(); page != kNoPage) held.push_back(page);
        break;
      case 2:
        if (!held.empty()) {
          const size_t at = random() % held.size();
          pool.Unref(held[at]);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        }
        break;
      case 3:
        if (!held.empty()) {
          const PageId page = held[random() % held.size()];
          if (std::find(kept.begin(), kept.end(), page) == kept.end()) {
            pool.Keep(page);
            kept.push_back(page);
          }
        }
        break;
      default:
        if (!kept.empty()) {
          const size_t at = random() % kept.size();
          if (random() % 2 == 0) {
            pool.Ref(kept[at]);
            held.push_back(kept[at]);
          } else {
            pool.Drop(kept[at]);
            kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(at));
          }
        }
    }
    ASSERT_EQ(pool.free() + pool.cached() + pool.used(), pool.total());
    int used = 0;
    int cached = 0;
    for (PageId page = 0; page < pool.total(); ++page) {
      const bool is_held = std::find(held.begin(), held.end(), page) != held.end();
      const bool is_kept = std::find(kept.begin(), kept.end(), page) != kept.end();
      used += is_held;
      cached += !is_held && is_kept;
    }
    ASSERT_EQ(pool.used(), used);
    ASSERT_EQ(pool.cached(), cached);
  }
}

}  // namespace
}  // namespace fathom::engine
