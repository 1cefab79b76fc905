#pragma once
// Inside of openai_types.cc and the files of its fields: what a request fills while it is read.
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "server/json_reader.h"
#include "server/openai_types.h"

namespace fathom::server {

// Everything that a request may fill while its fields are read.
struct RequestState {
  const RequestLimits& limits;
  session::GenerationParams* generation = nullptr;
  session::ChatParams* chat = nullptr;
  CompletionRequest* completion = nullptr;
  TokenizeRequest* tokenize = nullptr;
  DetokenizeRequest* detokenize = nullptr;
  OutputOptions* output = nullptr;
  Timing* timing = nullptr;
  std::optional<int32_t> max_tokens, max_completion_tokens;
  std::optional<int32_t> top_logprobs;
  bool include_usage_given = false;
  bool continue_final_message = false;
  bool tools_off = false;  // tool_choice "none"
  bool has_messages = false;
  bool has_prompt = false;
};

using RequestField = FieldHandler<RequestState>;
using RequestFields = std::vector<RequestField>;

inline MaybeError Ok() { return std::nullopt; }

// "model" must name what is served.
MaybeError ReadModel(const JsonValue& value, RequestState& state);
// max_tokens and max_completion_tokens.
MaybeError ReadMaxTokens(const JsonValue& value, const RequestLimits& limits,
                         std::optional<int32_t>* out);

// Fields that OpenAI knows and Fathom does not: taken at the values that change nothing.
MaybeError OnlyString(const JsonValue& value, std::initializer_list<std::string_view> harmless);
MaybeError OnlyFalse(const JsonValue& value, RequestState&);
MaybeError OnlyNull(const JsonValue& value, RequestState&);
MaybeError AnyString(const JsonValue& value, RequestState&);

// Sampling, lengths, streaming: of chats and completions.
const RequestFields& GenerationFields();
// Messages, tools and the template's switches: of chats and /tokenize.
const RequestFields& ConversationFields();

ApiError MissingField(std::string_view path, std::string_view name);

}  // namespace fathom::server
