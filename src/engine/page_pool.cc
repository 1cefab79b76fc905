#include "engine/page_pool.h"

#include "base/check.h"

namespace fathom::engine {

PagePool::PagePool(int32_t num_pages)
    : references_(static_cast<size_t>(num_pages)), kept_(static_cast<size_t>(num_pages)) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (PageId page = num_pages; page-- > 0;) free_.push_back(page);
}

PageId PagePool::Allocate() {
  if (free_.empty()) return kNoPage;
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::Ref(PageId page) {
  if (references_[page]++ == 0) {
    FATHOM_CHECK(kept_[page] != 0, "page {} is free and was referenced", page);
    --cached_;
  }
}

bool PagePool::Unref(PageId page) {
  FATHOM_CHECK(references_[page] > 0, "page {} has no reference to give back", page);
  if (--references_[page] > 0) return false;
  if (kept_[page] != 0) {
    ++cached_;
  } else {
    free_.push_back(page);
  }
  return true;
}

void PagePool::Keep(PageId page) {
  FATHOM_CHECK(references_[page] > 0, "page {} is kept before it is used", page);
  kept_[page] = 1;
}

void PagePool::Drop(PageId page) {
  FATHOM_CHECK(kept_[page] != 0, "page {} is not kept", page);
  kept_[page] = 0;
  if (references_[page] > 0) return;
  --cached_;
  free_.push_back(page);
}

}  // namespace fathom::engine
