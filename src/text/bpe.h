#pragma once
// Byte-pair encoding over bytes (Sennrich et al. 2016, byte-level as in GPT-2): a word starts as
// its bytes, then the adjacent pair whose merge has the lowest rank, leftmost first, is merged
// until no pair of the table is left.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

// (left id, right id) -> rank and merged id. Open addressing, at most half full, behind a bit set
// that answers most pairs without a merge from the second-level cache.
class MergeTable {
 public:
  static constexpr uint32_t kNoMerge = ~uint32_t{0};
  struct Merge {
    uint32_t rank = kNoMerge;
    int32_t id = -1;
  };

  explicit MergeTable(size_t expected = 0);
  // A pair given again takes the later merge.
  void Insert(int32_t left, int32_t right, Merge merge);
  // Null where the pair does not merge.
  const Merge* Find(int32_t left, int32_t right) const;

 private:
  struct Entry {
    uint64_t key;
    Merge merge;
  };
  size_t Slot(uint64_t key, uint64_t hash) const;

  std::vector<Entry> entries_;
  std::vector<uint64_t> filter_;  // bit: the top bits of the hash of some key
  int shift_ = 0;
  size_t size_ = 0;
};

// Words that are one token. Open addressing, at most half full, behind a bit set that answers for
// most words that are none.
class WordTable {
 public:
  explicit WordTable(size_t expected = 0);
  // The bytes of `word`, not empty, must outlive the table. A word given again keeps its first id.
  void Insert(std::string_view word, int32_t id);
  // -1 where there is no such word.
  int32_t Find(std::string_view word) const;

 private:
  struct Entry {
    std::string_view word;  // empty: free
    int32_t id = -1;
  };
  size_t Slot(std::string_view word, uint64_t hash) const;

  std::vector<Entry> entries_;
  std::vector<uint64_t> filter_;  // bit: the top bits of the hash of some word
  int shift_ = 0;
  size_t size_ = 0;
  size_t longest_ = 0;
};

class BpeModel {
 public:
  // Working memory, one a thread.
  class Scratch {
    friend class BpeModel;
    struct Candidate {
      uint32_t rank;
      uint32_t position;
      int32_t id;
    };
    std::vector<int32_t> ids_;
    std::vector<uint32_t> ranks_;
    std::vector<int32_t> merged_;
    std::vector<uint32_t> next_, previous_;
    std::vector<Candidate> heap_;
  };

  // byte_ids: the token of each single byte, -1 where the vocabulary has none.
  // whole_words: words that are one token without looking at merges (ignore_merges), else empty.
  BpeModel(const std::array<int32_t, 256>& byte_ids, MergeTable merges, WordTable whole_words);

  // Appends the tokens of `word`, not empty. Bytes without a token are an internal error: the
  // caller has checked that every byte of valid UTF-8 has one.
  void Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  void MergeByScan(std::string_view word, Scratch& scratch) const;
  void MergeByHeap(std::string_view word, Scratch& scratch) const;
  // Of bytes i and i + 1 of the word.
  const MergeTable::Merge& BytePair(std::string_view word, size_t i) const {
    return byte_pairs_[size_t{static_cast<uint8_t>(word[i])} << 8 |
                       static_cast<uint8_t>(word[i + 1])];
  }

  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  std::vector<MergeTable::Merge> byte_pairs_;  // [256 * 256], what merges_ has for two bytes
  WordTable whole_words_;
};

}  // namespace fathom::text
