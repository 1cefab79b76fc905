#include "diagnose/string_table.h"

#include <simdjson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <string>

#include "base/check.h"

namespace fathom::diagnose {
namespace {

constexpr size_t kChunkBytes = 64 << 10;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none.
size_t SequenceLength(std::string_view text) {
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    if (simdjson::validate_utf8(text.data(), length)) return length;
  }
  return 0;
}

std::string RepairUtf8(std::string_view text) {
  std::string repaired;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    repaired += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return repaired;
}

uint32_t HashOf(std::string_view text) {
  return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
}

}  // namespace

StringTable::StringTable() : strings_(1), cells_(1024) {}

StringId StringTable::Find(std::string_view text) const {
  const uint32_t hash = HashOf(text);
  const size_t mask = cells_.size() - 1;
  for (size_t i = hash & mask; cells_[i].id != 0; i = (i + 1) & mask) {
    if (cells_[i].hash == hash && strings_[cells_[i].id] == text) return cells_[i].id;
  }
  return 0;
}

StringId StringTable::Intern(std::string_view text) {
  if (text.empty()) return 0;
  const uint32_t hash = HashOf(text);
  size_t mask = cells_.size() - 1;
  size_t i = hash & mask;
  for (; cells_[i].id != 0; i = (i + 1) & mask) {
    if (cells_[i].hash == hash && strings_[cells_[i].id] == text) return cells_[i].id;
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    ++invalid_utf8_;
    return Intern(RepairUtf8(text));
  }
  FATHOM_CHECK(strings_.size() < UINT32_MAX);
  const auto id = static_cast<StringId>(strings_.size());
  strings_.push_back(Store(text));
  cells_[i] = {hash, id};
  if (strings_.size() * 2 > cells_.size()) Grow();
  return id;
}

std::string_view StringTable::Store(std::string_view text) {
  if (text.size() > chunk_left_) {
    // A long string gets a chunk of its own, so that it does not waste the rest of the current one.
    if (text.size() > kChunkBytes / 4) {
      chunks_.push_back(std::make_unique_for_overwrite<char[]>(text.size()));
      std::memcpy(chunks_.back().get(), text.data(), text.size());
      return {chunks_.back().get(), text.size()};
    }
    chunks_.push_back(std::make_unique_for_overwrite<char[]>(kChunkBytes));
    chunk_next_ = chunks_.back().get();
    chunk_left_ = kChunkBytes;
  }
  std::memcpy(chunk_next_, text.data(), text.size());
  const std::string_view stored(chunk_next_, text.size());
  chunk_next_ += text.size();
  chunk_left_ -= text.size();
  return stored;
}

void StringTable::Grow() {
  std::vector<Cell> grown(cells_.size() * 2);
  const size_t mask = grown.size() - 1;
  for (const Cell& cell : cells_) {
    if (cell.id == 0) continue;
    size_t i = cell.hash & mask;
    while (grown[i].id != 0) i = (i + 1) & mask;
    grown[i] = cell;
  }
  cells_ = std::move(grown);
}

}  // namespace fathom::diagnose
