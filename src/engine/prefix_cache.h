#pragma once
// Shares the pages of equal prompt beginnings. A radix tree whose edges are whole pages: a node is
// one page, found by the hash of its path and verified token by token. The path starts in a space,
// and everything that changes a key or value bit is part of it: model, mask policy, KV format, the
// sequence's RoPE table, the tenant's salt; and, unless reuse_generated is set, how many of the
// page's tokens took the prompt path (generated tokens take another, which rounds differently).
//
// Pages nobody references are evicted least recently used first. A sequence references all pages of
// its path and gives them back last page first, so what is evicted is always a leaf.
//
// Engine thread only. All memory is reserved by the constructor, but for new spaces.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/page_pool.h"
#include "engine/request.h"
#include "event/ring.h"

namespace fathom::engine {

// What makes the cached bits of one engine differ from another's.
struct CacheVersion {
  uint64_t model = 0;        // model::Model::fingerprint
  uint64_t mask_policy = 0;  // 0: full causal
  uint64_t kv_format = 0;    // ops::CacheFormat::Fingerprint of all groups, folded
};

inline constexpr int32_t kMaxPageTokens = 128;

struct PrefixCacheOptions {
  int32_t page_tokens = 64;      // 1 to kMaxPageTokens
  bool enabled = true;           // off: pages are handed out and taken back, none is kept
  bool reuse_generated = false;  // see EngineOptions::reuse_generated_pages
  int32_t bos_token = -1;        // to tell a missing or doubled BOS from another text
  CacheVersion version;
};

using SpaceId = int32_t;

// A sequence's way through the tree.
struct PagePath {
  SpaceId space = -1;
  int32_t num_prompt = 0;        // leading tokens that take the prompt path
  std::vector<uint64_t> chains;  // hash of the path down to each whole page, as far as known
  // The deepest page that the last search found, so that the next goes on from there: a waiting
  // sequence is looked at every step.
  int32_t found_pages = 0;
  PageId found = kNoPage;
  uint64_t found_serial = 0;  // tells whether that page is still the same node
};

class PrefixCache {
 public:
  PrefixCache(PagePool& pool, const PrefixCacheOptions& options, event::Sink sink);

  // Spaces are counted: a space without paths and pages is reused.
  // `max_tokens`: of prompt and answer, to reserve for.
  PagePath OpenPath(uint64_t rope_key, std::string_view tenant, std::span<const int32_t> prompt,
                    int32_t max_tokens);
  void ClosePath(PagePath& path);

  // How many leading pages of `tokens` are here. At least one token is left to compute: its logits
  // are wanted. `unreferenced`: how many of them could be evicted at present.
  struct Match {
    int32_t num_pages = 0;
    int32_t unreferenced = 0;
  };
  Match Find(PagePath& path, std::span<const int32_t> tokens) const;

  // Finds, references and appends them to `pages`; tells the event stream what was found and why
  // not more.
  Match Acquire(PagePath& path, std::span<const int32_t> tokens, RequestId request,
                bool stripped_thinking, std::vector<PageId>& pages);

  // Makes page `index` of a path, computed and committed, findable. All pages before it are
  // published, `pages` holds them. When an equal page is here already, the sequence goes on with
  // that one (referenced for it) and the result is the page that it must release; else kNoPage.
  PageId Publish(PagePath& path, std::span<const int32_t> tokens, int32_t index,
                 std::span<PageId> pages);

  // A referenced page, evicting if need be; kNoPage when all are referenced.
  PageId Allocate();
  int32_t total_pages() const { return pool_.total(); }
  int32_t Available() const { return pool_.free() + pool_.cached(); }
  // Gives back a path's pages, last first. `tokens` are those that were computed in them: what did
  // not fill a page is remembered, to explain later misses.
  void Release(const PagePath& path, std::span<const int32_t> tokens,
               std::span<const PageId> pages);
  void Release(PageId page);

  int32_t page_tokens() const { return options_.page_tokens; }
  bool enabled() const { return options_.enabled; }
  uint64_t query_tokens() const { return query_tokens_; }
  uint64_t hit_tokens() const { return hit_tokens_; }

 private:
  // The node of a page; only meaningful while the page is kept.
  struct Node {
    uint64_t chain = 0;
    uint64_t serial = 0;  // of its publication, never used again
    SpaceId space = -1;
    int32_t prompt_tokens = 0;  // of the page's tokens
    PageId parent = kNoPage;
    PageId first_child = kNoPage;
    PageId next_sibling = kNoPage;
    PageId previous_sibling = kNoPage;
    PageId newer = kNoPage;  // among the evictable
    PageId older = kNoPage;
    int32_t tail_tokens = 0;  // how much of tails_ is filled
    bool in_tree = false;
    bool evictable = false;
  };
  struct Space {
    uint64_t rope_key = 0;
    std::string tenant;
    uint64_t seed = 0;
    PageId first_page = kNoPage;
    int32_t paths = 0;
    std::vector<int32_t> tail;
  };
  struct Miss {
    event::MissCause cause = event::MissCause::kNone;
    int32_t token = 0;           // the first that diverges
    int32_t stranded_pages = 0;  // there under another version
  };

  struct Evicted {
    uint64_t chain = 0;
    bool crowded = false;  // it and the pages before it could not stay beside those in use
  };

  SpaceId FindSpace(uint64_t rope_key, std::string_view tenant);
  int32_t PromptTokensOf(const PagePath& path, int32_t index) const;
  uint64_t ChainOf(uint64_t parent_chain, std::span<const int32_t> page,
                   int32_t prompt_tokens) const;
  void ExtendChains(PagePath& path, std::span<const int32_t> tokens, int32_t count) const;
  std::span<const int32_t> PageOf(std::span<const int32_t> tokens, int32_t index) const;
  std::span<int32_t> TokensOf(PageId page);
  std::span<const int32_t> TokensOf(PageId page) const;
  PageId Child(SpaceId space, PageId parent, uint64_t chain, std::span<const int32_t> page,
               int32_t prompt_tokens) const;

  // Explanation (prefix_miss.cc). `at` is the last page that matched, kNoPage for none.
  Miss Explain(const PagePath& path, std::span<const int32_t> tokens, const Match& match, PageId at,
               bool stripped_thinking) const;
  int32_t PagesInSpace(SpaceId space, std::span<const int32_t> tokens) const;
  bool BosDiffers(SpaceId space, std::span<const int32_t> tokens) const;

  // Hash table from chain to page: linear probing, deletion by shifting back.
  void InsertInTable(PageId page);
  void EraseFromTable(PageId page);
  void MarkEvicted(const Evicted& evicted);
  const Evicted* FindEvicted(uint64_t chain) const;  // null when it was not, or long ago
  size_t EvictedSet(uint64_t chain) const;           // where its set begins

  void Link(PageId page, PageId parent, SpaceId space);
  void Evict();
  void PushEvictable(PageId page);
  void RemoveEvictable(PageId page);

  PagePool& pool_;
  PrefixCacheOptions options_;
  event::Sink sink_;
  std::vector<Node> nodes_;      // [num_pages]
  std::vector<int32_t> tokens_;  // [num_pages, page_tokens]
  std::vector<int32_t> tails_;   // [num_pages, page_tokens] what followed and did not fill a page
  std::vector<PageId> table_;    // power of two, at most half full
  // Evicted pages in sets of kEvictedWays, newest first in each: a hint for explanations.
  static constexpr size_t kEvictedWays = 4;
  std::vector<Evicted> evicted_;  // [sets, kEvictedWays], sets a power of two
  std::vector<Space> spaces_;
  PageId newest_ = kNoPage;
  PageId oldest_ = kNoPage;
  uint64_t next_serial_ = 1;
  uint64_t query_tokens_ = 0;
  uint64_t hit_tokens_ = 0;
};

}  // namespace fathom::engine
