#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/clock.h"
#include "base/strings.h"

namespace fathom::engine {
namespace {

uint64_t HashOf(std::span<const int32_t> values, uint64_t seed) {
  return Hash64({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, seed);
}

uint64_t HashOf(uint64_t value, uint64_t seed) {
  return Hash64({reinterpret_cast<const char*>(&value), sizeof value}, seed);
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, const PrefixCacheOptions& options, event::Sink sink)
    : pool_(pool), options_(options), sink_(sink) {
  FATHOM_CHECK(options_.page_tokens >= 1 && options_.page_tokens <= kMaxPageTokens);
  if (!options_.enabled) return;
  const auto num_pages = static_cast<size_t>(pool_.total());
  nodes_.resize(num_pages);
  tokens_.resize(num_pages * options_.page_tokens);
  tails_.resize(num_pages * options_.page_tokens);
  table_.assign(std::bit_ceil(2 * num_pages), kNoPage);
  evicted_.resize(std::bit_ceil(num_pages) * kEvictedWays);
}

SpaceId PrefixCache::FindSpace(uint64_t rope_key, std::string_view tenant) {
  SpaceId unused = -1;
  for (size_t i = 0; i < spaces_.size(); ++i) {
    const Space& space = spaces_[i];
    if (space.rope_key == rope_key && space.tenant == tenant) return static_cast<SpaceId>(i);
    if (space.paths == 0 && space.first_page == kNoPage) unused = static_cast<SpaceId>(i);
  }
  if (unused < 0) {
    unused = static_cast<SpaceId>(spaces_.size());
    spaces_.emplace_back();
  }
  uint64_t seed = HashOf(options_.version.model, rope_key);
  seed = HashOf(options_.version.mask_policy, seed);
  seed = HashOf(options_.version.kv_format, seed);
  spaces_[unused] = Space{.rope_key = rope_key,
                          .tenant = std::string(tenant),
                          .seed = Hash64(tenant, seed),
                          .tail = {}};
  return unused;
}

PagePath PrefixCache::OpenPath(uint64_t rope_key, std::string_view tenant,
                               std::span<const int32_t> prompt, int32_t max_tokens) {
  PagePath path;
  path.num_prompt = static_cast<int32_t>(prompt.size());
  if (!options_.enabled) return path;
  path.space = FindSpace(rope_key, tenant);
  ++spaces_[path.space].paths;
  path.chains.reserve(static_cast<size_t>(max_tokens / options_.page_tokens) + 1);
  ExtendChains(path, prompt, path.num_prompt / options_.page_tokens);
  return path;
}

void PrefixCache::ClosePath(PagePath& path) {
  if (path.space < 0) return;
  --spaces_[path.space].paths;
  path.space = -1;
}

int32_t PrefixCache::PromptTokensOf(const PagePath& path, int32_t index) const {
  if (options_.reuse_generated) return options_.page_tokens;
  return std::clamp(path.num_prompt - index * options_.page_tokens, 0, options_.page_tokens);
}

uint64_t PrefixCache::ChainOf(uint64_t parent_chain, std::span<const int32_t> page,
                              int32_t prompt_tokens) const {
  return HashOf(page, HashOf(static_cast<uint64_t>(prompt_tokens), parent_chain));
}

std::span<const int32_t> PrefixCache::PageOf(std::span<const int32_t> tokens, int32_t index) const {
  return tokens.subspan(static_cast<size_t>(index) * options_.page_tokens,
                        static_cast<size_t>(options_.page_tokens));
}

std::span<int32_t> PrefixCache::TokensOf(PageId page) {
  const auto n = static_cast<size_t>(options_.page_tokens);
  return std::span(tokens_).subspan(static_cast<size_t>(page) * n, n);
}

std::span<const int32_t> PrefixCache::TokensOf(PageId page) const {
  const auto n = static_cast<size_t>(options_.page_tokens);
  return std::span(tokens_).subspan(static_cast<size_t>(page) * n, n);
}

void PrefixCache::ExtendChains(PagePath& path, std::span<const int32_t> tokens,
                               int32_t count) const {
  for (auto i = static_cast<int32_t>(path.chains.size()); i < count; ++i) {
    const uint64_t parent = i == 0 ? spaces_[path.space].seed : path.chains[i - 1];
    path.chains.push_back(ChainOf(parent, PageOf(tokens, i), PromptTokensOf(path, i)));
  }
}

PageId PrefixCache::Child(SpaceId space, PageId parent, uint64_t chain,
                          std::span<const int32_t> page, int32_t prompt_tokens) const {
  const size_t mask = table_.size() - 1;
  for (size_t at = chain & mask; table_[at] != kNoPage; at = (at + 1) & mask) {
    const Node& node = nodes_[table_[at]];
    if (node.chain == chain && node.space == space && node.parent == parent &&
        node.prompt_tokens == prompt_tokens && std::ranges::equal(TokensOf(table_[at]), page)) {
      return table_[at];
    }
  }
  return kNoPage;
}

PrefixCache::Match PrefixCache::Find(PagePath& path, std::span<const int32_t> tokens) const {
  Match match;
  if (!options_.enabled) return match;
  const int32_t limit = std::min(static_cast<int32_t>(path.chains.size()),
                                 (static_cast<int32_t>(tokens.size()) - 1) / options_.page_tokens);
  PageId at = kNoPage;
  // Nothing is evicted before its children, so the same node has the same pages above it.
  if (path.found != kNoPage && nodes_[path.found].in_tree &&
      nodes_[path.found].serial == path.found_serial) {
    at = path.found;
    match.num_pages = path.found_pages;
  }
  while (match.num_pages < limit) {
    const int32_t i = match.num_pages;
    const PageId next =
        Child(path.space, at, path.chains[i], PageOf(tokens, i), PromptTokensOf(path, i));
    if (next == kNoPage) break;
    at = next;
    ++match.num_pages;
  }
  path.found = at;
  path.found_pages = match.num_pages;
  path.found_serial = at == kNoPage ? 0 : nodes_[at].serial;
  // Who references a page references all above it.
  for (; at != kNoPage && pool_.references(at) == 0; at = nodes_[at].parent) ++match.unreferenced;
  return match;
}

PrefixCache::Match PrefixCache::Acquire(PagePath& path, std::span<const int32_t> tokens,
                                        RequestId request, bool stripped_thinking,
                                        std::vector<PageId>& pages) {
  if (!options_.enabled) return {};
  event::Event event;
  event.kind = event::Kind::kPrefixLookup;
  event.request_id = request;
  event.start_ns = sink_.enabled() ? NowNs() : 0;

  const Match match = Find(path, tokens);
  const auto begin = static_cast<std::ptrdiff_t>(pages.size());
  for (PageId at = path.found; at != kNoPage; at = nodes_[at].parent) {
    if (nodes_[at].evictable) RemoveEvictable(at);
    pool_.Ref(at);
    pages.push_back(at);
  }
  std::reverse(pages.begin() + begin, pages.end());
  const auto found = static_cast<uint64_t>(match.num_pages) * options_.page_tokens;
  query_tokens_ += tokens.size();
  hit_tokens_ += found;
  if (!sink_.enabled()) return match;

  const Miss miss = Explain(path, tokens, match, path.found, stripped_thinking);
  event.value = found;
  event.aux = tokens.size();
  event.duration_ns = NowNs() - event.start_ns;
  sink_.Emit(event);
  event.start_ns += event.duration_ns;
  event.duration_ns = 0;
  event.aux = 0;
  event.flags = static_cast<uint16_t>(miss.cause);
  if (miss.stranded_pages > 0) {
    event.kind = event::Kind::kKvVersionMismatch;
    event.value = static_cast<uint64_t>(miss.stranded_pages);
    sink_.Emit(event);
  }
  if (miss.cause != event::MissCause::kNone) {
    event.kind = event::Kind::kCacheMiss;
    event.value = static_cast<uint64_t>(miss.token);
    event.aux = tokens.size() - found;
    sink_.Emit(event);
  }
  return match;
}

PageId PrefixCache::Publish(PagePath& path, std::span<const int32_t> tokens, int32_t index,
                            std::span<PageId> pages) {
  if (!options_.enabled) return kNoPage;
  ExtendChains(path, tokens, index + 1);
  const PageId page = pages[index];
  const PageId parent = index == 0 ? kNoPage : pages[index - 1];
  const uint64_t chain = path.chains[index];
  const int32_t prompt_tokens = PromptTokensOf(path, index);
  const PageId known = Child(path.space, parent, chain, PageOf(tokens, index), prompt_tokens);
  if (known == page) return kNoPage;
  if (known != kNoPage) {
    if (nodes_[known].evictable) RemoveEvictable(known);
    pool_.Ref(known);
    pages[index] = known;
    return page;
  }
  Node& node = nodes_[page];
  FATHOM_CHECK(!node.in_tree, "page {} is published twice", page);
  node = Node{.chain = chain,
              .serial = next_serial_++,
              .space = path.space,
              .prompt_tokens = prompt_tokens};
  std::ranges::copy(PageOf(tokens, index), TokensOf(page).begin());
  Link(page, parent, path.space);
  InsertInTable(page);
  pool_.Keep(page);
  return kNoPage;
}

PageId PrefixCache::Allocate() {
  if (pool_.free() == 0 && oldest_ != kNoPage) Evict();
  return pool_.Allocate();
}

void PrefixCache::Release(PageId page) {
  if (pool_.Unref(page) && options_.enabled && nodes_[page].in_tree) PushEvictable(page);
}

void PrefixCache::Release(const PagePath& path, std::span<const int32_t> tokens,
                          std::span<const PageId> pages) {
  if (options_.enabled) {
    size_t published = 0;
    while (published < pages.size() && nodes_[pages[published]].in_tree) ++published;
    const auto n = static_cast<size_t>(options_.page_tokens);
    const size_t begin = std::min(published * n, tokens.size());
    const auto tail = tokens.subspan(begin, std::min(n, tokens.size() - begin));
    if (published == 0) {
      spaces_[path.space].tail.assign(tail.begin(), tail.end());
    } else if (!tail.empty()) {
      const PageId last = pages[published - 1];
      nodes_[last].tail_tokens = static_cast<int32_t>(tail.size());
      std::ranges::copy(tail, tails_.begin() + static_cast<std::ptrdiff_t>(n) * last);
    }
  }
  for (size_t i = pages.size(); i-- > 0;) Release(pages[i]);
}

void PrefixCache::Link(PageId page, PageId parent, SpaceId space) {
  Node& node = nodes_[page];
  PageId& first = parent == kNoPage ? spaces_[space].first_page : nodes_[parent].first_child;
  node.in_tree = true;
  node.parent = parent;
  node.previous_sibling = kNoPage;
  node.next_sibling = first;
  if (first != kNoPage) nodes_[first].previous_sibling = page;
  first = page;
}

void PrefixCache::Evict() {
  const PageId page = oldest_;
  Node& node = nodes_[page];
  FATHOM_CHECK(node.first_child == kNoPage, "page {} would be evicted before its children", page);
  RemoveEvictable(page);
  EraseFromTable(page);
  int32_t together = pool_.used() + 1;  // with the page that is wanted
  for (PageId at = page; at != kNoPage && pool_.references(at) == 0; at = nodes_[at].parent) {
    ++together;
  }
  MarkEvicted({.chain = node.chain, .crowded = together > pool_.total()});
  if (node.previous_sibling != kNoPage) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoPage) {
    nodes_[node.parent].first_child = node.next_sibling;
  } else {
    spaces_[node.space].first_page = node.next_sibling;
  }
  if (node.next_sibling != kNoPage) {
    nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  }
  node.in_tree = false;
  pool_.Drop(page);
}

void PrefixCache::PushEvictable(PageId page) {
  Node& node = nodes_[page];
  node.evictable = true;
  node.newer = kNoPage;
  node.older = newest_;
  if (newest_ != kNoPage) nodes_[newest_].newer = page;
  newest_ = page;
  if (oldest_ == kNoPage) oldest_ = page;
}

void PrefixCache::RemoveEvictable(PageId page) {
  Node& node = nodes_[page];
  node.evictable = false;
  (node.newer == kNoPage ? newest_ : nodes_[node.newer].older) = node.older;
  (node.older == kNoPage ? oldest_ : nodes_[node.older].newer) = node.newer;
}

void PrefixCache::InsertInTable(PageId page) {
  const size_t mask = table_.size() - 1;
  size_t at = nodes_[page].chain & mask;
  while (table_[at] != kNoPage) at = (at + 1) & mask;
  table_[at] = page;
}

void PrefixCache::EraseFromTable(PageId page) {
  const size_t mask = table_.size() - 1;
  size_t hole = nodes_[page].chain & mask;
  while (table_[hole] != page) hole = (hole + 1) & mask;
  for (size_t at = (hole + 1) & mask; table_[at] != kNoPage; at = (at + 1) & mask) {
    const size_t home = nodes_[table_[at]].chain & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {  // its probe sequence passes the hole
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = kNoPage;
}

size_t PrefixCache::EvictedSet(uint64_t chain) const {
  return (chain & (evicted_.size() / kEvictedWays - 1)) * kEvictedWays;
}

void PrefixCache::MarkEvicted(const Evicted& evicted) {
  const auto set = evicted_.begin() + static_cast<std::ptrdiff_t>(EvictedSet(evicted.chain));
  std::copy_backward(set, set + kEvictedWays - 1, set + kEvictedWays);
  *set = evicted;
}

const PrefixCache::Evicted* PrefixCache::FindEvicted(uint64_t chain) const {
  const std::span<const Evicted> set = std::span(evicted_).subspan(EvictedSet(chain), kEvictedWays);
  const auto found = std::ranges::find(set, chain, &Evicted::chain);
  return found == set.end() ? nullptr : &*found;
}

}  // namespace fathom::engine
