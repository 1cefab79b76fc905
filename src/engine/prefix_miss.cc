// Why a cached prefix ended where it did. Runs only while events are recorded.
#include <algorithm>
#include <array>

#include "engine/prefix_cache.h"

namespace fathom::engine {
namespace {

constexpr int kMaxSiblings = 64;  // looked at for the closest other text

int32_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(n);
  return static_cast<int32_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace

PrefixCache::Miss PrefixCache::Explain(const PagePath& path, std::span<const int32_t> tokens,
                                       const Match& match, PageId at,
                                       bool stripped_thinking) const {
  using event::MissCause;
  const int32_t n = options_.page_tokens;
  const int32_t usable = (static_cast<int32_t>(tokens.size()) - 1) / n;
  const int32_t begin = match.num_pages * n;
  const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(begin));

  // The closest text that is known to follow here: a page, or a rest that did not fill one.
  const Space& space = spaces_[path.space];
  const std::span<const int32_t> tail =
      at == kNoPage ? std::span<const int32_t>(space.tail)
                    : std::span(tails_).subspan(static_cast<size_t>(at) * n,
                                                static_cast<size_t>(nodes_[at].tail_tokens));
  int32_t common = CommonPrefix(rest, tail);
  bool tail_matches = !tail.empty() && common == static_cast<int32_t>(tail.size());
  bool page_matches = false;
  PageId child = at == kNoPage ? space.first_page : nodes_[at].first_child;
  for (int i = 0; i < kMaxSiblings && child != kNoPage; ++i, child = nodes_[child].next_sibling) {
    const int32_t length = CommonPrefix(rest, TokensOf(child));
    page_matches |= length == n;
    if (length > common) {
      common = length;
      tail_matches = false;
    }
  }
  const int32_t divergent = begin + common;

  if (match.num_pages == usable) {
    // Every whole page that leaves a token to compute was here.
    const bool other = common > 0 && common < static_cast<int32_t>(rest.size()) && !tail_matches;
    return {other ? MissCause::kOtherText : MissCause::kPageRounding, divergent};
  }
  const size_t next = static_cast<size_t>(match.num_pages);
  if (const Evicted* evicted =
          next < path.chains.size() ? FindEvicted(path.chains[next]) : nullptr) {
    return {evicted->crowded ? MissCause::kCapacity : MissCause::kEvicted, begin};
  }
  if (page_matches) return {MissCause::kGenerated, begin};
  for (size_t i = 0; i < spaces_.size(); ++i) {
    if (static_cast<SpaceId>(i) == path.space || spaces_[i].first_page == kNoPage) continue;
    const int32_t there = PagesInSpace(static_cast<SpaceId>(i), tokens);
    if (there <= match.num_pages) continue;
    if (spaces_[i].tenant != space.tenant) return {MissCause::kTenant, begin};
    return {MissCause::kVersion, begin, there - match.num_pages};
  }
  if (match.num_pages == 0 && BosDiffers(path.space, tokens)) return {MissCause::kBos, 0};
  if (tail_matches) return {MissCause::kPageRounding, divergent};
  // A BOS in common is no likeness.
  const bool followed = !tail.empty() || (at != kNoPage && nodes_[at].first_child != kNoPage);
  const bool alike = match.num_pages == 0 ? common > (tokens[0] == options_.bos_token ? 1 : 0)
                                          : followed || stripped_thinking;
  if (!alike) return {MissCause::kFirstUse, divergent};
  return {stripped_thinking ? MissCause::kStrippedThinking : MissCause::kOtherText, divergent};
}

int32_t PrefixCache::PagesInSpace(SpaceId space, std::span<const int32_t> tokens) const {
  const int32_t usable = (static_cast<int32_t>(tokens.size()) - 1) / options_.page_tokens;
  uint64_t chain = spaces_[space].seed;
  PageId at = kNoPage;
  for (int32_t i = 0; i < usable; ++i) {
    chain = ChainOf(chain, PageOf(tokens, i), options_.page_tokens);
    at = Child(space, at, chain, PageOf(tokens, i), options_.page_tokens);
    if (at == kNoPage) return i;
  }
  return usable;
}

bool PrefixCache::BosDiffers(SpaceId space, std::span<const int32_t> tokens) const {
  const auto n = static_cast<size_t>(options_.page_tokens);
  if (options_.bos_token < 0 || tokens.size() <= n) return false;
  std::array<int32_t, kMaxPageTokens> buffer = {};
  const std::span<int32_t> page = std::span(buffer).first(n);
  if (tokens[0] == options_.bos_token) {
    std::ranges::copy(tokens.subspan(1, n), page.begin());
  } else {
    page[0] = options_.bos_token;
    std::ranges::copy(tokens.first(n - 1), page.begin() + 1);
  }
  const uint64_t chain = ChainOf(spaces_[space].seed, page, options_.page_tokens);
  return Child(space, kNoPage, chain, page, options_.page_tokens) != kNoPage;
}

}  // namespace fathom::engine
