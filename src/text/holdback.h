#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>

namespace fathom::text {

// Length of the longest suffix of `text` that is the beginning of `tag`, but not all of it: what a
// streaming reader must hold back while it waits for `tag`.
inline size_t PartialSuffix(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (tag.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace fathom::text
