#pragma once
// The pages of the KV cache by number. A page id names one page in every layer group that keeps all
// tokens, so these groups share one page table. Host bookkeeping only: no clock, no device.
#include <cstdint>
#include <vector>

namespace fathom::engine {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

// Every page is in one of three states: free, used (referenced by sequences) or cached (referenced
// by none, kept for the prefix cache). free + cached + used = total, always.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  PageId Allocate();  // referenced once; kNoPage when none is free
  void Ref(PageId page);
  // Gives back one reference; the last one makes the page cached when it is kept, else free.
  // Returns whether it was the last.
  bool Unref(PageId page);

  // Whether the page stays when nobody references it. Dropping an unreferenced page frees it.
  void Keep(PageId page);
  void Drop(PageId page);

  int32_t references(PageId page) const { return references_[page]; }
  int32_t total() const { return static_cast<int32_t>(references_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t cached() const { return cached_; }
  int32_t used() const { return total() - free() - cached_; }

 private:
  std::vector<int32_t> references_;
  std::vector<uint8_t> kept_;
  std::vector<PageId> free_;  // a stack: the page given back last is still in the caches
  int32_t cached_ = 0;
};

}  // namespace fathom::engine
