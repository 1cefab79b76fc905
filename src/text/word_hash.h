#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fathom::text {

// 64 bits of a short string, eight bytes at a time; tables index by the top ones.
inline uint64_t HashWord(std::string_view word, uint64_t seed = 0) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  uint64_t hash = ((word.size() << 8) | seed) * kGolden;
  size_t i = 0;
  for (; i + 8 <= word.size(); i += 8) {
    uint64_t chunk = 0;
    std::memcpy(&chunk, word.data() + i, 8);
    hash = std::rotl((hash ^ chunk) * kGolden, 29);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, word.data() + i, word.size() - i);
  return (hash ^ tail) * kGolden;
}

}  // namespace fathom::text
