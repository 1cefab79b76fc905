#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "text/word_hash.h"

namespace fathom::text {
namespace {

constexpr uint64_t kEmptyKey = ~uint64_t{0};
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint32_t kNone = ~uint32_t{0};
constexpr int kFilterShift = 2;
constexpr size_t kFilterBitsPerSlot = size_t{1} << kFilterShift;
// Up to here a scan for the lowest rank beats a heap.
constexpr size_t kScanBytes = 48;

constexpr uint32_t kNoMerge = MergeTable::kNoMerge;

size_t CapacityFor(size_t expected) { return std::bit_ceil(std::max<size_t>(16, expected * 2)); }

uint64_t PairKey(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t expected) {
  const size_t capacity = CapacityFor(expected);
  entries_.assign(capacity, Entry{kEmptyKey, {}});
  shift_ = 64 - std::countr_zero(capacity);
  filter_.assign(capacity * kFilterBitsPerSlot / 64, 0);
}

size_t MergeTable::Slot(uint64_t key, uint64_t hash) const {
  size_t slot = hash >> shift_;
  while (entries_[slot].key != kEmptyKey && entries_[slot].key != key) {
    slot = (slot + 1) & (entries_.size() - 1);
  }
  return slot;
}

void MergeTable::Insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = PairKey(left, right);
  const uint64_t hash = key * kGolden;
  Entry& entry = entries_[Slot(key, hash)];
  if (entry.key == kEmptyKey) {
    ++size_;
    FATHOM_CHECK(size_ * 2 <= entries_.size(), "more merges than announced");
  }
  entry = {key, merge};
  const uint64_t bit = hash >> (shift_ - kFilterShift);
  filter_[bit / 64] |= uint64_t{1} << (bit % 64);
}

const MergeTable::Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  const uint64_t hash = key * kGolden;
  const uint64_t bit = hash >> (shift_ - kFilterShift);
  if ((filter_[bit / 64] >> (bit % 64) & 1) == 0) return nullptr;
  const Entry& entry = entries_[Slot(key, hash)];
  return entry.key == kEmptyKey ? nullptr : &entry.merge;
}

WordTable::WordTable(size_t expected) {
  const size_t capacity = CapacityFor(expected);
  entries_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
  filter_.assign(capacity * kFilterBitsPerSlot / 64, 0);
}

size_t WordTable::Slot(std::string_view word, uint64_t hash) const {
  size_t slot = hash >> shift_;
  while (!entries_[slot].word.empty() && entries_[slot].word != word) {
    slot = (slot + 1) & (entries_.size() - 1);
  }
  return slot;
}

void WordTable::Insert(std::string_view word, int32_t id) {
  const uint64_t hash = HashWord(word);
  Entry& entry = entries_[Slot(word, hash)];
  if (!entry.word.empty()) return;
  FATHOM_CHECK(++size_ * 2 <= entries_.size(), "more words than announced");
  entry = {word, id};
  longest_ = std::max(longest_, word.size());
  const uint64_t bit = hash >> (shift_ - kFilterShift);
  filter_[bit / 64] |= uint64_t{1} << (bit % 64);
}

int32_t WordTable::Find(std::string_view word) const {
  if (word.size() > longest_) return -1;
  const uint64_t hash = HashWord(word);
  const uint64_t bit = hash >> (shift_ - kFilterShift);
  if ((filter_[bit / 64] >> (bit % 64) & 1) == 0) return -1;
  return entries_[Slot(word, hash)].id;
}

BpeModel::BpeModel(const std::array<int32_t, 256>& byte_ids, MergeTable merges,
                   WordTable whole_words)
    : byte_ids_(byte_ids),
      merges_(std::move(merges)),
      byte_pairs_(size_t{256} * 256),
      whole_words_(std::move(whole_words)) {
  for (size_t pair = 0; pair < byte_pairs_.size(); ++pair) {
    const MergeTable::Merge* merge = merges_.Find(byte_ids_[pair >> 8], byte_ids_[pair & 255]);
    if (merge != nullptr) byte_pairs_[pair] = *merge;
  }
}

void BpeModel::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (const int32_t whole = whole_words_.Find(word); whole >= 0) {
    out.push_back(whole);
    return;
  }
  std::vector<int32_t>& ids = scratch.ids_;
  ids.clear();
  for (const char c : word) {
    ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    FATHOM_CHECK(ids.back() >= 0, "byte {:#x} has no token", static_cast<uint8_t>(c));
  }
  if (word.size() <= kScanBytes) {
    MergeByScan(word, scratch);
  } else {
    MergeByHeap(word, scratch);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void BpeModel::MergeByScan(std::string_view word, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<uint32_t>& ranks = scratch.ranks_;  // of the pair (i, i + 1)
  std::vector<int32_t>& merged = scratch.merged_;
  ranks.assign(ids.size(), kNoMerge);
  merged.assign(ids.size(), -1);
  const auto look_up = [&](size_t i) {
    const MergeTable::Merge* merge =
        i + 1 < ids.size() ? merges_.Find(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = merge == nullptr ? kNoMerge : merge->rank;
    merged[i] = merge == nullptr ? -1 : merge->id;
  };
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const MergeTable::Merge& merge = BytePair(word, i);
    ranks[i] = merge.rank;
    merged[i] = merge.id;
  }
  while (true) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNoMerge) return;
    const auto i = lowest - ranks.begin();
    ids[static_cast<size_t>(i)] = merged[static_cast<size_t>(i)];
    ids.erase(ids.begin() + i + 1);
    ranks.erase(ranks.begin() + i + 1);
    merged.erase(merged.begin() + i + 1);
    look_up(static_cast<size_t>(i));
    if (i > 0) look_up(static_cast<size_t>(i) - 1);
  }
}

// O(n log n): a linked list of symbols and a heap of candidate merges. A candidate whose pair has
// changed since it was pushed is dropped when it comes up.
void BpeModel::MergeByHeap(std::string_view word, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<uint32_t>& next = scratch.next_;
  std::vector<uint32_t>& previous = scratch.previous_;
  std::vector<Scratch::Candidate>& heap = scratch.heap_;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const size_t size = ids.size();
  next.resize(size);
  previous.resize(size);
  heap.clear();
  for (size_t i = 0; i < size; ++i) {
    next[i] = i + 1 < size ? static_cast<uint32_t>(i + 1) : kNone;
    previous[i] = i > 0 ? static_cast<uint32_t>(i - 1) : kNone;
  }
  const auto push = [&](uint32_t i) {
    if (i == kNone || next[i] == kNone) return;
    if (const MergeTable::Merge* merge = merges_.Find(ids[i], ids[next[i]])) {
      heap.push_back({merge->rank, i, merge->id});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  for (size_t i = 0; i + 1 < size; ++i) {
    const MergeTable::Merge& merge = BytePair(word, i);
    if (merge.rank != kNoMerge) heap.push_back({merge.rank, static_cast<uint32_t>(i), merge.id});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    const uint32_t i = top.position;
    if (ids[i] < 0 || next[i] == kNone) continue;
    const uint32_t right = next[i];
    const MergeTable::Merge* merge = merges_.Find(ids[i], ids[right]);
    if (merge == nullptr || merge->rank != top.rank) continue;
    ids[i] = top.id;
    ids[right] = -1;  // absorbed
    next[i] = next[right];
    if (next[i] != kNone) previous[next[i]] = i;
    push(previous[i]);
    push(i);
  }
  std::erase(ids, -1);
}

}  // namespace fathom::text
