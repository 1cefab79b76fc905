#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "text/unicode.h"

namespace fathom::text {
namespace {

constexpr std::string_view kSpaceItems = "\\t-\\r \\x{85}\\p{Z}";  // White_Space, inside [ ]
// Bounds the time of a hostile expression; published ones need a few steps a match. The JIT counts
// differently from the interpreter, so this is an order of magnitude.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr size_t kJitStackBytes = size_t{8} << 20;

constexpr std::string_view kGeneralCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

bool IsGeneralCategory(std::string_view name) {
  for (std::string_view known : kGeneralCategories) {
    if (name == known) return true;
  }
  return false;
}

// "\p{L}" and the code points of L that Unicode 15 and 16 added, as items of a class.
std::string CategoryItems(std::string_view name) {
  std::string items = fmt::format("\\p{{{}}}", name);
  for (const CategoryRange& range : NewCategories()) {
    if (!std::string_view(range.category).starts_with(name)) continue;
    items += range.first == range.last ? fmt::format("\\x{{{:x}}}", uint32_t{range.first})
                                       : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}",
                                                     uint32_t{range.first}, uint32_t{range.last});
  }
  return items;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        FATHOM_TRY(Escape());
      } else if (in_class_) {
        FATHOM_TRY(ClassCharacter(c));
      } else if (c == '[') {
        OpenClass();
      } else if (c == '(') {
        FATHOM_TRY(Group());
      } else if (c == '{') {
        FATHOM_TRY(Braces());
      } else {
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  void Copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  tl::unexpected<Error> Unsupported(std::string_view what) const {
    return Err(
        Code::kUnsupported,
        "regular expression '{}': {} at offset {} is not supported; supported are literals, "
        "classes, groups ( ), (?: ), (?= ), (?! ), (?<= ), (?<! ), (?i: ), repeats, |, ^, $, "
        "\\s, \\S, \\d, \\r, \\n, \\t, \\x, and \\p with a general category",
        pattern_, what, at_);
  }

  // {n}, {n,} and {n,m}; any other '{' is itself. What may follow them differs: {n,m}+ and {n}? are
  // repeats of the repeat in Oniguruma.
  Status Braces() {
    size_t end = at_ + 1;
    while (end < pattern_.size() && (isdigit(static_cast<uint8_t>(pattern_[end])) != 0 ||
                                     (pattern_[end] == ',' && end > at_ + 1))) {
      ++end;
    }
    if (pattern_.substr(at_).starts_with("{,")) return Unsupported("{,n}");
    const bool repeat = end > at_ + 1 && end < pattern_.size() && pattern_[end] == '}';
    Copy(repeat ? end + 1 - at_ : 1);
    if (repeat && at_ < pattern_.size() &&
        std::string_view("+?*{").find(pattern_[at_]) != std::string_view::npos) {
      return Unsupported("a repeat of {n,m}");
    }
    return {};
  }

  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') Copy(1);
    class_start_ = at_;
  }

  Status ClassCharacter(char c) {
    if (c == ']' && at_ == class_start_) return Unsupported("an empty class");
    if (c == '[') return Unsupported("a class inside a class");
    if (c == '&' && pattern_.substr(at_).starts_with("&&")) return Unsupported("&&");
    if (c == ']') in_class_ = false;
    Copy(1);
    return {};
  }

  Status Group() {
    constexpr std::array<std::string_view, 7> kGroups = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?>"};
    const std::string_view rest = pattern_.substr(at_);
    if (rest.starts_with("(?") || rest.starts_with("(*")) {
      for (std::string_view group : kGroups) {
        if (!rest.starts_with(group)) continue;
        Copy(group.size());
        return {};
      }
      return Unsupported(rest.substr(0, 4));
    }
    Copy(1);
    return {};
  }

  void Emit(std::string_view items) {
    out_ += in_class_ ? std::string(items) : fmt::format("[{}]", items);
  }

  Status Escape() {
    if (at_ + 1 >= pattern_.size()) return Unsupported("a '\\' at the end");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        Emit(kSpaceItems);
        at_ += 2;
        return {};
      case 'S':
        if (in_class_) return Unsupported("\\S inside a class");
        out_ += fmt::format("[^{}]", kSpaceItems);
        at_ += 2;
        return {};
      case 'd':
        Emit(CategoryItems("Nd"));
        at_ += 2;
        return {};
      case 'p':
      case 'P':
        return Property(c == 'P');
      case 'x':
        return CodePoint();
      case 'r':
      case 'n':
      case 't':
      case 'f':
        Copy(2);
        return {};
      default:
        break;
    }
    const auto byte = static_cast<uint8_t>(c);
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return Unsupported(pattern_.substr(at_, 2));
    }
    if (byte >= 0x80) ++at_;  // an escaped non-ASCII character is itself
    Copy(byte >= 0x80 ? 1 : 2);
    return {};
  }

  Status Property(bool negated) {
    const std::string_view rest = pattern_.substr(at_ + 2);
    const size_t close = rest.find('}');
    if (!rest.starts_with('{') || close == std::string_view::npos) {
      return Unsupported("\\p without {…}");
    }
    std::string_view name = rest.substr(1, close - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (!IsGeneralCategory(name)) return Unsupported(fmt::format("\\p{{{}}}", name));
    if (negated && in_class_) return Unsupported("a negated property inside a class");
    if (negated) {
      out_ += fmt::format("[^{}]", CategoryItems(name));
    } else {
      Emit(CategoryItems(name));
    }
    at_ += 2 + close + 1;
    return {};
  }

  Status CodePoint() {
    std::string_view rest = pattern_.substr(at_ + 2);
    const bool braced = rest.starts_with('{');
    size_t digits = braced ? 1 : 0;
    const size_t limit = braced ? 9 : 2;
    while (digits < rest.size() && digits < limit && isxdigit(static_cast<uint8_t>(rest[digits]))) {
      ++digits;
    }
    if (braced && (digits == 1 || digits >= rest.size() || rest[digits] != '}')) {
      return Unsupported("\\x{ without hexadecimal digits and }");
    }
    if (!braced && digits != 2) return Unsupported("\\x without two hexadecimal digits");
    Copy(2 + digits + (braced ? 1 : 0));
    return {};
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_start_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

struct RegexScratch::State {
  State()
      : match_data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    FATHOM_CHECK(match_data != nullptr && context != nullptr && stack != nullptr,
                 "PCRE2 is out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_match_data_free(match_data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  pcre2_match_data* match_data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;
RegexScratch::~RegexScratch() = default;

struct Regex::Compiled {
  explicit Compiled(pcre2_code* code) : code(code) {}
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }
  pcre2_code* code;
  bool jit = false;
};

Regex::Regex(std::unique_ptr<Compiled> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  FATHOM_ASSIGN_OR_RETURN(const std::string pcre, TranslateRegex(pattern));
  return CompilePcre(pcre, pattern);
}

Result<Regex> Regex::CompileLiteral(std::string_view text) {
  std::string pcre;
  for (char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}").find(c) != std::string_view::npos) pcre += '\\';
    pcre += c;
  }
  return CompilePcre(pcre, text);
}

Result<Regex> Regex::CompilePcre(const std::string& pcre, std::string_view shown) {
  int error = 0;
  size_t offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return Err(Code::kInvalidArgument, "regular expression '{}': {}", shown, message);
  }
  auto owner = std::make_unique<Compiled>(code);
  // A PCRE2 built without JIT, or a pattern that it refuses, runs in the interpreter: same result.
  owner->jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(owner));
}

Result<Regex::Match> Regex::Find(std::string_view text, size_t begin, RegexScratch& scratch) const {
  const RegexScratch::State& state = *scratch.state_;
  const int rc = (code_->jit ? pcre2_jit_match : pcre2_match)(
      code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
      PCRE2_NO_UTF_CHECK, state.match_data, state.context);
  if (rc == PCRE2_ERROR_NOMATCH) return Match{false, {}};
  if (rc < 0) {
    char message[256] = {};
    pcre2_get_error_message(rc, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return Err(Code::kResourceExhausted,
               "a regular expression of the pre-tokenizer failed on a text of {} bytes: {}",
               text.size(), message);
  }
  const size_t* ends = pcre2_get_ovector_pointer(state.match_data);
  // \K is refused by the translator, so begin <= end.
  return Match{true, {ends[0], ends[1]}};
}

Result<Regex::Match> RegexIterator::Next() {
  while (next_ <= text_.size()) {
    FATHOM_ASSIGN_OR_RETURN(const Regex::Match match, regex_.Find(text_, next_, scratch_));
    if (!match.found) break;
    if (match.span.size() == 0 && match.span.end == last_match_end_) {
      // As the iterator of the reference: one character on from where this search began.
      next_ += next_ < text_.size() ? DecodeUtf8(text_.substr(next_)).size : 1;
      continue;
    }
    next_ = last_match_end_ = match.span.end;
    return match;
  }
  next_ = text_.size() + 1;
  return Regex::Match{false, {}};
}

}  // namespace fathom::text
