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

  size_t num_steps() const { return steps_.size(); }

  // Calls `emit` for each non-empty piece that one step cuts `text` (valid UTF-8, not empty) into,
  // in order, until it returns an error. The views are valid during the call. Step num_steps() - 1
  // gives the words.
  Status Run(size_t step, std::string_view text, Scratch& scratch,
             FunctionRef<Status(std::string_view)> emit) const;

 private:
  struct Step {
    std::optional<Regex> regex;  // none: the space in front
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };

  std::vector<Step> steps_;
};

}  // namespace fathom::text
