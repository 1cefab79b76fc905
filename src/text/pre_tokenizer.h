#pragma once
// Cuts a text into words, the units of byte-pair encoding. A chain of splits as in tokenizer.json:
// each split sees each piece of the one before as a text of its own.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "text/regex.h"

namespace fathom::text {

enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // matches and what lies between are pieces
  kContiguous,          // as kIsolated, but adjacent matches are one piece
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match begins the piece after it
};

class PreTokenizer {
 public:
  // Per-thread working memory.
  struct Scratch {
    RegexScratch regex;
    std::string prefixed;
  };

  // `invert` swaps matches and what lies between them.
  void AddSplit(Regex regex, SplitBehavior behavior, bool invert);
  // From here on, a piece that does not begin with a space gets one in front. At most once.
  void AddPrefixSpace();

  // Calls `emit` for each non-empty word of `text` (valid UTF-8), in order. The views are valid
  // during the call.
  Status Run(std::string_view text, Scratch& scratch,
             FunctionRef<void(std::string_view)> emit) const;

 private:
  struct Step {
    std::optional<Regex> regex;  // none: the space in front
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };

  Status RunFrom(size_t index, std::string_view text, Scratch& scratch,
                 FunctionRef<void(std::string_view)> emit) const;

  std::vector<Step> steps_;
};

}  // namespace fathom::text
