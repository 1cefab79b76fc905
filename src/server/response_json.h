#pragma once
// Responses of the OpenAI HTTP API as text: whole bodies and the chunks of a stream. Pure.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/openai_types.h"
#include "session/session.h"

namespace fathom::server {

enum class ResponseKind : uint8_t { kChat, kCompletion };

// session::Finish, kept past the call that brought it.
struct ChoiceFinish {
  engine::FinishReason reason = engine::FinishReason::kStop;
  bool called_tools = false;
  engine::Usage usage;
  int32_t reasoning_tokens = 0;
  std::optional<ApiError> error;  // set for kError, kDeadline and kCancelled
};
ChoiceFinish KeepFinish(const session::Finish& finish);

// Everything that one choice said.
struct ChoiceText {
  session::TextDelta all;  // content, reasoning, logprobs; tool call deltas joined, one a call
  std::optional<ChoiceFinish> finish;

  void Append(session::TextDelta delta);
};

struct UsageTotals {
  int64_t prompt_tokens = 0;  // a prompt counts once however many choices it has
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};
// finishes [num_prompts * n], the choices of a prompt side by side.
UsageTotals SumUsage(const std::vector<ChoiceText>& choices, int32_t n);

class ResponseText {
 public:
  ResponseText(ResponseKind kind, std::string id, std::string model, int64_t created_unix_s,
               const OutputOptions& output)
      : kind_(kind),
        id_(std::move(id)),
        model_(std::move(model)),
        created_(created_unix_s),
        output_(output) {}

  const std::string& id() const { return id_; }

  // One body. `echo` holds the text before each choice's own, or is empty.
  // `ledger` null: none was asked for.
  std::string Whole(const std::vector<ChoiceText>& choices, const UsageTotals& usage,
                    const std::vector<std::string>& echo,
                    const nlohmann::ordered_json& ledger) const;

  // Stream chunks, without "data: ". `first` announces the assistant's role.
  std::string Delta(int32_t choice, const session::TextDelta& delta, bool first);
  std::string Finished(int32_t choice, const ChoiceFinish& finish) const;
  // The chunk after the last choice: usage and ledger as asked for; empty when neither was.
  std::string Last(const UsageTotals& usage, const nlohmann::ordered_json& ledger) const;

 private:
  nlohmann::ordered_json Head(bool chunk) const;

  ResponseKind kind_;
  std::string id_;
  std::string model_;
  int64_t created_;
  OutputOptions output_;
  std::vector<int64_t> text_offsets_;  // of completions with logprobs, a choice
};

// The text that goes out: invalid UTF-8 becomes U+FFFD.
std::string Dump(const nlohmann::ordered_json& json);

std::string ModelBody(const session::ModelInfo& model, int64_t created_unix_s);
std::string ModelsBody(const session::ModelInfo& model, int64_t created_unix_s);
std::string TokenizeBody(const std::vector<int32_t>& tokens,
                         const std::optional<std::vector<std::string>>& token_strs,
                         int32_t max_context_tokens);
std::string DetokenizeBody(const std::string& text);

}  // namespace fathom::server
