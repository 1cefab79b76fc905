#pragma once
// The tokens of pieces of text met before. A piece counts together with the pre-tokenizer step that
// it is about to enter: what follows from there depends on nothing else.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/word_hash.h"

namespace fathom::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 21;  // longer pieces are not kept
  static constexpr size_t kMaxTokens = 10;

  WordCache() : entries_(size_t{1} << kBits) {}

  // A place for the piece, which Hit() and Store() take.
  size_t Slot(size_t step, std::string_view piece) const {
    return HashWord(piece, step) >> (64 - kBits);
  }

  bool Hit(size_t slot, size_t step, std::string_view piece) const {
    const Entry& entry = entries_[slot];
    return entry.size == piece.size() && entry.step == step &&
           std::memcmp(entry.bytes.data(), piece.data(), piece.size()) == 0;
  }

  std::span<const int32_t> Tokens(size_t slot) const {
    return {entries_[slot].tokens.data(), entries_[slot].num_tokens};
  }

  // Takes the place of what was there. `piece` is not empty and at most kMaxBytes long.
  void Store(size_t slot, size_t step, std::string_view piece, std::span<const int32_t> tokens) {
    if (tokens.size() > kMaxTokens) return;
    Entry& entry = entries_[slot];
    entry.size = static_cast<uint8_t>(piece.size());
    entry.step = static_cast<uint8_t>(step);
    entry.num_tokens = static_cast<uint8_t>(tokens.size());
    std::memcpy(entry.bytes.data(), piece.data(), piece.size());
    std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
  }

 private:
  // 8192 entries are 512 KiB: half of a usual second-level cache.
  static constexpr int kBits = 13;

  struct alignas(64) Entry {  // one cache line
    uint8_t size = 0;         // 0: empty
    uint8_t step = 0;
    uint8_t num_tokens = 0;
    std::array<char, kMaxBytes> bytes;
    std::array<int32_t, kMaxTokens> tokens;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace fathom::text
