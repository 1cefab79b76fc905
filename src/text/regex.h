#pragma once
// The regular expressions of tokenizer.json files. They are written for Oniguruma in Ruby syntax
// with Unicode 16, and run here on PCRE2 (JIT). Where the two differ the pattern is translated:
//   - \s is White_Space: PCRE2 adds U+180E;
//   - \p{L} and other general categories gain what Unicode 15 and 16 assigned, so that token ids do
//     not depend on the PCRE2 that is installed;
//   - ^ and $ match at every line.
// A construct that would mean something else in PCRE2 is an error that names it.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

struct TextSpan {
  size_t begin;
  size_t end;
  size_t size() const { return end - begin; }
  bool operator==(const TextSpan&) const = default;
};

// What one thread needs to run expressions; any Regex may use it, one at a time.
class RegexScratch {
 public:
  RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;
  ~RegexScratch();

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  static Result<Regex> Compile(std::string_view pattern);
  // Matches `text` itself.
  static Result<Regex> CompileLiteral(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The first match at or after `begin`, found = false where there is none. `text` is valid UTF-8
  // and `begin` lies between two characters. An expression that needs too many steps on this text
  // is an error (kResourceExhausted).
  struct Match {
    bool found;
    TextSpan span;
  };
  Result<Match> Find(std::string_view text, size_t begin, RegexScratch& scratch) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> code);
  static Result<Regex> CompilePcre(const std::string& pcre, std::string_view shown);
  std::unique_ptr<Compiled> code_;
};

// Walks all matches of one expression over one text as Oniguruma's iterator does: matches do not
// overlap, and an empty match right after the previous match is skipped.
class RegexIterator {
 public:
  RegexIterator(const Regex& regex, std::string_view text, RegexScratch& scratch)
      : regex_(regex), text_(text), scratch_(scratch) {}

  // found = false at the end.
  Result<Regex::Match> Next();

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexScratch& scratch_;
  size_t next_ = 0;
  size_t last_match_end_ = std::string_view::npos;
};

// The PCRE2 pattern that means what `pattern` means to Oniguruma; for tests.
Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace fathom::text
