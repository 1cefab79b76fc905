#include "diagnose/readers/copies.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/readers/reader.h"

namespace fathom::diagnose {
namespace {

using Open = std::function<Result<Input>(const std::string&)>;

// Kept of each file to find those that begin alike.
constexpr size_t kHeadBytes = 64 << 10;
constexpr size_t kChunkBytes = 1 << 20;

struct Head {
  const std::string* path;
  std::string bytes;
  bool whole() const { return bytes.size() < kHeadBytes; }
};

std::vector<Head> HeadsOf(std::span<const std::string> files, const Open& open) {
  std::vector<Head> heads;
  for (const std::string& file : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) continue;
    const Result<Input> input = open(file);
    if (!input || !FindReader(*input)) continue;
    heads.push_back({&file, std::string(input->prefix().substr(0, kHeadBytes))});
  }
  return heads;
}

// Fills the front of `into` as far as the input goes; 0 at its end and where it cannot be read.
size_t Fill(Input& input, std::vector<char>& into) {
  size_t size = 0;
  while (size < into.size()) {
    const Result<size_t> n = input.Read(std::span(into).subspan(size));
    if (!n || *n == 0) break;
    size += *n;
  }
  return size;
}

enum class Relation { kDifferent, kEqual, kFirstIsCut, kSecondIsCut };

Relation Compare(const std::string& first, const std::string& second, const Open& open) {
  Result<Input> a = open(first);
  Result<Input> b = open(second);
  if (!a || !b) return Relation::kDifferent;
  std::vector<char> of_a(kChunkBytes);
  std::vector<char> of_b(kChunkBytes);
  for (;;) {
    const size_t in_a = Fill(*a, of_a);
    const size_t in_b = Fill(*b, of_b);
    const size_t both = std::min(in_a, in_b);
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<ptrdiff_t>(both), of_b.begin())) {
      return Relation::kDifferent;
    }
    if (in_a < in_b) return Relation::kFirstIsCut;
    if (in_b < in_a) return Relation::kSecondIsCut;
    if (in_a < kChunkBytes) return Relation::kEqual;
  }
}

}  // namespace

std::map<std::string, CopyOf> FindCopies(std::span<const std::string> files, const Open& open) {
  std::map<std::string, CopyOf> copies;
  if (files.size() < 2) return copies;
  std::vector<Head> heads = HeadsOf(files, open);
  // In this order, what begins with all of a file follows it at once.
  std::stable_sort(heads.begin(), heads.end(),
                   [](const Head& a, const Head& b) { return a.bytes < b.bytes; });
  for (size_t end = heads.size(); end > 0;) {
    size_t begin = end - 1;  // [begin, end) begin alike
    while (begin > 0 && heads[begin - 1].bytes == heads[begin].bytes) --begin;
    const Head& head = heads[begin];
    if (head.whole()) {
      const bool cut = end < heads.size() && heads[end].bytes.starts_with(head.bytes);
      const std::string& whole = cut ? *heads[end].path : *head.path;
      for (size_t i = begin; i < end; ++i) {
        if (*heads[i].path != whole) copies[*heads[i].path] = {whole, cut};
      }
    } else {
      std::vector<const std::string*> kept;
      for (size_t i = begin; i < end; ++i) {
        const std::string* path = heads[i].path;
        bool keep = true;
        for (const std::string*& other : kept) {
          const Relation relation = Compare(*other, *path, open);
          if (relation == Relation::kDifferent) continue;
          if (relation == Relation::kFirstIsCut) {
            copies[*other] = {*path, true};
            other = path;
          } else {
            copies[*path] = {*other, relation == Relation::kSecondIsCut};
          }
          keep = false;
          break;
        }
        if (keep) kept.push_back(path);
      }
    }
    end = begin;
  }
  // A copy of a copy is one of the longest.
  for (auto& [path, copy] : copies) {
    for (auto it = copies.find(copy.whole); it != copies.end(); it = copies.find(copy.whole)) {
      copy.cut_short = copy.cut_short || it->second.cut_short;
      copy.whole = it->second.whole;
    }
  }
  return copies;
}

}  // namespace fathom::diagnose
