#pragma once
// Interned text. A trace of a million events has a few thousand different names, so every table of
// the timeline holds 4-byte ids and the bytes are kept once.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace fathom::diagnose {

// Index into a StringTable. 0 is the empty string, which also stands for "not given".
using StringId = uint32_t;

class StringTable {
 public:
  StringTable();
  StringTable(StringTable&&) noexcept = default;
  StringTable& operator=(StringTable&&) noexcept = default;

  // The id of `text`, adding it when it is new. Bytes that are not UTF-8 become U+FFFD, so that
  // every interned string may be printed and written to JSON.
  StringId Intern(std::string_view text);

  // The id of `text`, or 0 when it was never interned (0 for "" too).
  StringId Find(std::string_view text) const;

  // Valid as long as the table lives; never moves.
  std::string_view Get(StringId id) const { return strings_[id]; }

  size_t size() const { return strings_.size(); }
  // Strings whose bytes had to be repaired.
  uint64_t invalid_utf8() const { return invalid_utf8_; }

 private:
  struct Cell {
    uint32_t hash = 0;
    StringId id = 0;  // 0: empty cell
  };

  std::string_view Store(std::string_view text);
  void Grow();

  std::vector<std::string_view> strings_;
  std::vector<Cell> cells_;  // open addressing, a power of two, at most 1/2 full
  std::vector<std::unique_ptr<char[]>> chunks_;
  size_t chunk_left_ = 0;
  char* chunk_next_ = nullptr;
  uint64_t invalid_utf8_ = 0;
};

}  // namespace fathom::diagnose
