#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>

#include "diagnose/understand/steps.h"

namespace fathom::diagnose {
namespace {

// A reader of the small languages that engines write into their markers.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool Skip(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<double> Number() {
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) return std::nullopt;
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return value;
  }
  // What stands between "(" and its ")".
  std::optional<std::string_view> Parenthesised() {
    const size_t close = text_.find(')');
    if (!text_.starts_with('(') || close == std::string_view::npos) return std::nullopt;
    const std::string_view inside = text_.substr(1, close - 1);
    text_.remove_prefix(close + 1);
    return inside;
  }

 private:
  std::string_view text_;
};

// The number after `key` ("bs=117/128" gives 117).
double NumberAfter(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::numeric_limits<double>::quiet_NaN();
  return Cursor(text.substr(at + key.size()))
      .Number()
      .value_or(std::numeric_limits<double>::quiet_NaN());
}

Phase PhaseOf(double prompts, double generations) {
  if (prompts > 0 && generations > 0) return Phase::kMixed;
  if (prompts > 0) return Phase::kPrefill;
  if (generations > 0) return Phase::kDecode;
  return Phase::kUnknown;
}

// "6144", "888_788544" (tokens, then their squared sum), "sq32sk55086sqsq32sqsk55086" (sums of
// query and key lengths and of their products): the number of query tokens.
double QueryTokens(std::string_view inside) {
  Cursor cursor(inside);
  cursor.Skip("sq");
  return cursor.Number().value_or(std::numeric_limits<double>::quiet_NaN());
}

// vLLM: "execute_[BATCH_]context_N(...)_generation_M(...)", N and M being sequences.
bool ParseVllm(std::string_view text, MarkerText& marker) {
  Cursor cursor(text);
  if (!cursor.Skip("execute_")) return false;
  if (!cursor.Skip("context_")) {
    if (!cursor.Number() || !cursor.Skip("_context_")) return false;
  }
  const std::optional<double> prompts = cursor.Number();
  const auto prompt_inside = cursor.Parenthesised();
  if (!prompts || !prompt_inside || !cursor.Skip("_generation_")) return false;
  const std::optional<double> generations = cursor.Number();
  const auto generation_inside = cursor.Parenthesised();
  if (!generations || !generation_inside) return false;
  marker.is_step = true;
  marker.phase = PhaseOf(*prompts, *generations);
  marker.batch = *prompts + *generations;
  marker.prompt_tokens = QueryTokens(*prompt_inside);
  marker.generated_tokens = QueryTokens(*generation_inside);
  return true;
}

// SGLang: "step[DECODE bs=32]", "step[EXTEND bs=15 toks=15360]", "decode[bs=117/128 tok=117
// d=117]".
bool ParseSglang(std::string_view text, MarkerText& marker) {
  const size_t open = text.find('[');
  if (open == std::string_view::npos || !text.ends_with(']')) return false;
  std::string_view kind = text.substr(0, open);
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  if (kind == "step") kind = inside.substr(0, inside.find(' '));
  std::string lower(kind);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "decode") {
    marker.phase = Phase::kDecode;
  } else if (lower == "extend" || lower == "prefill") {
    marker.phase = Phase::kPrefill;
  } else if (lower == "mixed") {
    marker.phase = Phase::kMixed;
  } else {
    return false;
  }
  marker.is_step = true;
  marker.batch = NumberAfter(inside, "bs=");
  const double counted = NumberAfter(inside, "toks=");
  const double any = counted == counted ? counted : NumberAfter(inside, "tok=");
  if (marker.phase == Phase::kDecode) {
    marker.generated_tokens = any == any ? any : marker.batch;
  } else if (marker.phase == Phase::kPrefill) {
    marker.prompt_tokens = any;
  }
  return true;
}

}  // namespace

std::string_view PhaseName(Phase phase) {
  static constexpr std::array<std::string_view, kNumPhases> kNames = {"prefill", "decode", "mixed",
                                                                      "unknown"};
  return kNames[static_cast<size_t>(phase)];
}

std::string_view StepOriginName(StepOrigin origin) {
  static constexpr std::array<std::string_view, 4> kNames = {"annotation", "nvtx", "graph launch",
                                                             "repeated kernel"};
  return kNames[static_cast<size_t>(origin)];
}

MarkerText ParseMarker(std::string_view text) {
  MarkerText marker;
  if (text.starts_with("capture_")) {
    marker.is_capture = true;
    return marker;
  }
  if (ParseVllm(text, marker) || ParseSglang(text, marker)) return marker;
  if (text.starts_with("ProfilerStep#")) {
    marker.is_step = true;
    return marker;
  }
  // A word of its own: "decode_step_3", "prefill", "Decode 17", not "decoder layer 3".
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto is_word = [&](std::string_view word) {
    if (!lower.starts_with(word)) return false;
    std::string_view rest = std::string_view(lower).substr(word.size());
    for (const std::string_view suffix : {"_step", " step", "-step"}) {
      if (rest.starts_with(suffix)) {
        rest.remove_prefix(suffix.size());
        break;
      }
    }
    return rest.find_first_not_of("_- #0123456789") == std::string_view::npos;
  };
  if (is_word("decode")) marker.phase = Phase::kDecode;
  if (is_word("prefill") || is_word("extend")) marker.phase = Phase::kPrefill;
  if (is_word("mixed")) marker.phase = Phase::kMixed;
  marker.is_step = marker.phase != Phase::kUnknown;
  return marker;
}

}  // namespace fathom::diagnose
