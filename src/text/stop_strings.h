#pragma once
// Ends a streamed text before the first stop string. Text that may be the beginning of one is held
// back, so that nothing of a stop string is ever shown (Aho and Corasick 1975).
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

class StopMatcher {
 public:
  // Empty strings never match.
  explicit StopMatcher(const std::vector<std::string>& stops);

  struct Result {
    std::string text;      // certain to be before any stop string
    int32_t stopped = -1;  // index of the stop string that was found; the text ends here
  };
  // The string found is the one that ends first; of those that end together, the longest. After
  // that, nothing more comes.
  Result Push(std::string_view text);
  // The rest, at the end of a text that was not stopped.
  std::string Flush();

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    uint32_t fail = 0;   // the longest proper suffix that is a prefix too
    uint32_t depth = 0;  // its length
    int32_t stop = -1;   // index of the longest stop string that ends here
  };
  uint32_t Child(uint32_t node, char c) const;  // 0: none

  std::vector<Node> nodes_;
  std::vector<size_t> sizes_;
  uint32_t at_ = 0;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace fathom::text
