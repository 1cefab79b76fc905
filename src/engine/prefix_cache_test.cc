#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace fathom::engine {
namespace {

constexpr int32_t kPage = 4;

std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Explained {
  int32_t found = 0;
  std::optional<event::MissCause> cause;
  int32_t token = -1;
  int32_t stranded = 0;
};

class PrefixCacheTest : public testing::Test {
 protected:
  void Make(int32_t num_pages, PrefixCacheOptions options = {}) {
    options.page_tokens = kPage;
    pool_.emplace(num_pages);
    cache_.emplace(*pool_, options, event::Sink(&ring_));
  }

  // Computes a whole request and gives its pages back.
  void Use(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer = {},
           uint64_t rope_key = 0, std::string_view tenant = "") {
    std::vector<int32_t> all = prompt + answer;
    PagePath path = cache_->OpenPath(rope_key, tenant, prompt, static_cast<int32_t>(all.size()));
    std::vector<PageId> pages;
    int32_t published = cache_->Acquire(path, prompt, 1, false, pages).num_pages;
    while (static_cast<int32_t>(pages.size()) * kPage < static_cast<int32_t>(all.size())) {
      pages.push_back(cache_->Allocate());
      ASSERT_NE(pages.back(), kNoPage);
    }
    for (; (published + 1) * kPage <= static_cast<int32_t>(all.size()); ++published) {
      const PageId replaced = cache_->Publish(path, all, published, pages);
      if (replaced != kNoPage) cache_->Release(replaced);
    }
    cache_->Release(path, all, pages);
    cache_->ClosePath(path);
  }

  Explained Ask(const std::vector<int32_t>& prompt, bool stripped = false, uint64_t rope_key = 0,
                std::string_view tenant = "") {
    DrainAll();
    PagePath path = cache_->OpenPath(rope_key, tenant, prompt, static_cast<int32_t>(prompt.size()));
    std::vector<PageId> pages;
    cache_->Acquire(path, prompt, 1, stripped, pages);
    // As one that never ran would: nothing of it is remembered.
    for (size_t i = pages.size(); i-- > 0;) cache_->Release(pages[i]);
    cache_->ClosePath(path);
    Explained explained;
    for (const event::Event& event : DrainAll()) {
      const auto value = static_cast<int32_t>(event.value);
      if (event.kind == event::Kind::kPrefixLookup) explained.found = value;
      if (event.kind == event::Kind::kKvVersionMismatch) explained.stranded = value;
      if (event.kind == event::Kind::kCacheMiss) {
        explained.cause = static_cast<event::MissCause>(event.flags);
        explained.token = value;
      }
    }
    return explained;
  }

  std::vector<event::Event> DrainAll() {
    std::vector<event::Event> events(ring_.capacity());
    events.resize(ring_.Drain(events));
    return events;
  }

  event::Ring ring_{1024};
  std::optional<PagePool> pool_;
  std::optional<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsWholePagesAndLeavesATokenToCompute) {
  Make(16);
  Use(Tokens(100, 12));
  EXPECT_EQ(pool_->cached(), 3);
  EXPECT_EQ(Ask(Tokens(100, 13)).found, 12);
  EXPECT_EQ(Ask(Tokens(100, 12)).found, 8);  // the last page is computed again for its logits
  EXPECT_EQ(Ask(Tokens(100, 6)).found, 4);
  EXPECT_EQ(Ask(Tokens(101, 12)).found, 0);
  EXPECT_EQ(pool_->used(), 0);
}

TEST_F(PrefixCacheTest, AnEqualPageReplacesTheOneComputedTwice) {
  Make(16);
  Use(Tokens(0, 8));
  Use(Tokens(0, 8));  // finds one page, computes the second again
  EXPECT_EQ(pool_->cached(), 2);
  EXPECT_EQ(pool_->free(), 14);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  Make(4);
  Use(Tokens(0, 8));                      // pages a0 a1
  Use(Tokens(100, 8));                    // pages b0 b1
  EXPECT_EQ(Ask(Tokens(0, 9)).found, 8);  // a is used again
  Use(Tokens(200, 4));                    // takes b1
  EXPECT_EQ(Ask(Tokens(100, 9)).found, 4);
  EXPECT_EQ(Ask(Tokens(0, 9)).found, 8);
  Use(Tokens(300, 8));  // takes c0 and b0
  EXPECT_EQ(Ask(Tokens(0, 9)).found, 8);
  EXPECT_EQ(Ask(Tokens(100, 9)).found, 0);
}

TEST_F(PrefixCacheTest, ReferencedPagesAreNeverEvicted) {
  Make(2);
  Use(Tokens(0, 8));
  const std::vector<int32_t> prompt = Tokens(0, 9);
  PagePath path = cache_->OpenPath(0, "", prompt, 9);
  std::vector<PageId> pages;
  EXPECT_EQ(cache_->Acquire(path, prompt, 1, false, pages).num_pages, 2);
  EXPECT_EQ(cache_->Available(), 0);
  EXPECT_EQ(cache_->Allocate(), kNoPage);
  cache_->Release(path, std::span(prompt).first(8), pages);
  cache_->ClosePath(path);
  EXPECT_NE(cache_->Allocate(), kNoPage);
}

TEST_F(PrefixCacheTest, GeneratedPagesServePromptsOnlyWhenToldTo) {
  Make(16);
  Use(Tokens(0, 6), Tokens(6, 6));
  const Explained kept_apart = Ask(Tokens(0, 13));
  EXPECT_EQ(kept_apart.found, 4);
  EXPECT_EQ(kept_apart.cause, event::MissCause::kGenerated);
  EXPECT_EQ(kept_apart.token, 4);

  Make(16, {.reuse_generated = true});
  Use(Tokens(0, 6), Tokens(6, 6));
  EXPECT_EQ(Ask(Tokens(0, 13)).found, 12);
}

TEST_F(PrefixCacheTest, APreemptedSequenceFindsItsOwnGeneratedPages) {
  Make(16);
  const std::vector<int32_t> prompt = Tokens(0, 6);
  const std::vector<int32_t> all = Tokens(0, 13);
  PagePath path = cache_->OpenPath(0, "", prompt, 13);
  std::vector<PageId> pages;
  cache_->Acquire(path, prompt, 1, false, pages);
  while (pages.size() < 4) pages.push_back(cache_->Allocate());
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(cache_->Publish(path, all, i, pages), kNoPage);
  const std::vector<PageId> before = pages;
  cache_->Release(path, std::span(all).first(12), pages);

  pages.clear();
  EXPECT_EQ(cache_->Acquire(path, all, 1, false, pages).num_pages, 3);
  EXPECT_TRUE(std::equal(pages.begin(), pages.end(), before.begin()));
  cache_->Release(path, std::span(all).first(12), pages);
  cache_->ClosePath(path);
  EXPECT_EQ(pool_->used(), 0);
}

TEST_F(PrefixCacheTest, SaysWhereAndWhyAPrefixEnds) {
  Make(16, {.bos_token = 1});
  const std::vector<int32_t> bos = {1};
  EXPECT_EQ(Ask(Tokens(50, 9)).cause, event::MissCause::kFirstUse);

  Use(bos + Tokens(50, 11));
  Explained e = Ask(bos + Tokens(50, 5) + Tokens(90, 9));
  EXPECT_EQ(e.found, 4);
  EXPECT_EQ(e.cause, event::MissCause::kOtherText);
  EXPECT_EQ(e.token, 6);

  e = Ask(bos + Tokens(50, 5) + Tokens(90, 9), /*stripped=*/true);
  EXPECT_EQ(e.cause, event::MissCause::kStrippedThinking);
  EXPECT_EQ(e.token, 6);

  e = Ask(Tokens(50, 12));
  EXPECT_EQ(e.found, 0);
  EXPECT_EQ(e.cause, event::MissCause::kBos);

  e = Ask(bos + Tokens(700, 11));  // nothing in common but the BOS
  EXPECT_EQ(e.cause, event::MissCause::kFirstUse);

  e = Ask(bos + Tokens(50, 9));  // 8 of 10 tokens: what is left does not fill a page
  EXPECT_EQ(e.found, 8);
  EXPECT_EQ(e.cause, event::MissCause::kPageRounding);
  EXPECT_EQ(e.token, 10);

  Use(Tokens(200, 10));
  e = Ask(Tokens(200, 10) + Tokens(900, 9));
  EXPECT_EQ(e.found, 8);
  EXPECT_EQ(e.cause, event::MissCause::kPageRounding);  // 2 tokens were there, in no whole page
  EXPECT_EQ(e.token, 10);
}

TEST_F(PrefixCacheTest, ADoubledBosIsToldFromOtherText) {
  Make(16, {.bos_token = 1});
  const std::vector<int32_t> bos = {1};
  Use(bos + Tokens(50, 11));
  const Explained e = Ask(bos + bos + Tokens(50, 11));
  EXPECT_EQ(e.cause, event::MissCause::kBos);
}

TEST_F(PrefixCacheTest, OtherRopeTenantAndEvictionAreNamed) {
  Make(6);
  Use(Tokens(0, 8), {}, /*rope_key=*/7);
  Explained e = Ask(Tokens(0, 9), false, /*rope_key=*/8);
  EXPECT_EQ(e.found, 0);
  EXPECT_EQ(e.cause, event::MissCause::kVersion);
  EXPECT_EQ(e.stranded, 2);

  e = Ask(Tokens(0, 9), false, /*rope_key=*/7, "other");
  EXPECT_EQ(e.found, 0);
  EXPECT_EQ(e.cause, event::MissCause::kTenant);
  EXPECT_EQ(e.stranded, 0);

  for (const int other : {500, 600, 700}) Use(Tokens(other, 8), {}, /*rope_key=*/7);
  e = Ask(Tokens(0, 9), false, /*rope_key=*/7);
  EXPECT_EQ(e.found, 0);
  EXPECT_EQ(e.cause, event::MissCause::kEvicted);
  EXPECT_EQ(e.token, 0);
}

TEST_F(PrefixCacheTest, AnEvictionIsRememberedWhileThePoolTurnsOver) {
  for (int first = 0; first < 16; ++first) {
    Make(32);
    Use(Tokens(1000 * first, 8));
    for (int other = 0; other < 6; ++other) {
      Use(Tokens(50000 + 1000 * other + first, 8 * kPage));
    }
    const Explained e = Ask(Tokens(1000 * first, 9));
    EXPECT_EQ(e.found, 0);
    EXPECT_EQ(e.cause, event::MissCause::kEvicted) << first;
  }
}

TEST_F(PrefixCacheTest, APrefixThatCannotStayBesideWhatRunsIsCapacity) {
  Make(6);
  Use(Tokens(0, 16));
  std::vector<PageId> running;
  for (int i = 0; i < 4; ++i) running.push_back(cache_->Allocate());  // evicts the last two
  EXPECT_EQ(Ask(Tokens(0, 17)).cause, event::MissCause::kCapacity);
  for (const PageId page : running) cache_->Release(page);
  EXPECT_EQ(Ask(Tokens(0, 17)).cause, event::MissCause::kCapacity);
  // The two that stayed give way to prompts beside each of which they could have stayed.
  for (const int other : {500, 600, 700}) Use(Tokens(other, 8));
  EXPECT_EQ(Ask(Tokens(0, 9)).cause, event::MissCause::kEvicted);
}

TEST_F(PrefixCacheTest, OffItOnlyHandsPagesOut) {
  Make(4, {.enabled = false});
  Use(Tokens(0, 12));
  EXPECT_EQ(pool_->free(), 4);
  EXPECT_EQ(Ask(Tokens(0, 12)).found, 0);
}

TEST_F(PrefixCacheTest, ASearchGoesOnWhereTheLastEndedWhileThatPageIsTheSame) {
  Make(4);
  const std::vector<int32_t> prompt = Tokens(0, 13);
  PagePath path = cache_->OpenPath(0, "", prompt, 13);
  EXPECT_EQ(cache_->Find(path, prompt).num_pages, 0);
  Use(Tokens(0, 8));
  EXPECT_EQ(cache_->Find(path, prompt).num_pages, 2);
  EXPECT_EQ(cache_->Find(path, prompt).unreferenced, 2);
  Use(Tokens(0, 12));
  EXPECT_EQ(cache_->Find(path, prompt).num_pages, 3);
  Use(Tokens(500, 16));  // evicts all, and publishes other nodes in the same pages
  EXPECT_EQ(cache_->Find(path, prompt).num_pages, 0);
  cache_->ClosePath(path);
}

// Random requests over a small alphabet and a small pool, half of which search long before they
// acquire: what is found is always what was computed for exactly these tokens.
TEST_F(PrefixCacheTest, RandomUseFindsOnlyWhatWasComputedForTheseTokens) {
  Make(12);
  std::vector<std::vector<int32_t>> content(12);  // the whole path's tokens, per page
  uint64_t state = 5;
  const auto next = [&state](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % n);
  };
  struct Waiting {
    std::vector<int32_t> tokens;
    PagePath path;
  };
  std::vector<Waiting> waiting;
  uint64_t hits = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> prompt(static_cast<size_t>(1 + next(30)));
    for (int32_t& token : prompt) token = next(16) == 0 ? 1 : 0;
    PagePath opened = cache_->OpenPath(0, "", prompt, 30);
    waiting.push_back({std::move(prompt), std::move(opened)});
    for (Waiting& w : waiting) cache_->Find(w.path, w.tokens);
    if (waiting.size() < 5 && next(2) == 0) continue;
    const auto at = waiting.begin() + next(waiting.size());
    const std::vector<int32_t> tokens = std::move(at->tokens);
    PagePath path = std::move(at->path);
    waiting.erase(at);

    std::vector<PageId> pages;
    int32_t published = cache_->Acquire(path, tokens, 1, false, pages).num_pages;
    DrainAll();
    for (int32_t i = 0; i < published; ++i) {
      const std::vector<int32_t> prefix(tokens.begin(), tokens.begin() + (i + 1) * kPage);
      ASSERT_EQ(content[pages[i]], prefix);
      ++hits;
    }
    while (pages.size() * kPage < tokens.size()) {
      pages.push_back(cache_->Allocate());
      ASSERT_NE(pages.back(), kNoPage);
    }
    for (; (published + 1) * kPage <= static_cast<int32_t>(tokens.size()); ++published) {
      content[pages[published]].assign(tokens.begin(), tokens.begin() + (published + 1) * kPage);
      const PageId replaced = cache_->Publish(path, tokens, published, pages);
      if (replaced != kNoPage) cache_->Release(replaced);
    }
    cache_->Release(path, tokens, pages);
    cache_->ClosePath(path);
    ASSERT_EQ(pool_->used(), 0);
    ASSERT_EQ(pool_->free() + pool_->cached(), 12);
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_EQ(cache_->hit_tokens(), hits * kPage);
}

}  // namespace
}  // namespace fathom::engine
