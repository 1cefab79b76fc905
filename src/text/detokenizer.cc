#include "text/detokenizer.h"

#include "text/unicode.h"

namespace fathom::text {

std::string Detokenizer::Push(int32_t id) {
  if (options_.skip_special_tokens && tokenizer_->IsSpecial(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Utf8Step step = DecodeUtf8(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    out += step.kind == Utf8Step::Kind::kValid ? rest.substr(0, step.size) : kReplacementCharacter;
    at += step.size;
  }
  pending_.erase(0, at);
  return out;
}

std::string Detokenizer::Flush() {
  std::string rest = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return rest;
}

}  // namespace fathom::text
