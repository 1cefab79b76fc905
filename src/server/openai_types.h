#pragma once
// The requests of the OpenAI HTTP API, parsed into what the session takes. Pure: text in, value or
// OpenAI-shaped error out. JSON ends here.
//
// Every field is known, and then taken, or refused with the reason; an unknown one is an error that
// names the nearest known field. null means absent, as in OpenAI's API.
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "session/session.h"

namespace fathom::server {

// {"error": {"message", "type", "param", "code"}}
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the JSON path of the field; empty: null
  std::string code;   // "invalid_value", ...; empty: null
  std::string type = "invalid_request_error";
};
template <class T>
using ApiResult = tl::expected<T, ApiError>;

// What the values are checked against.
struct RequestLimits {
  std::string model;  // the name that is served
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  bool has_chat_template = true;
  bool keeps_ledgers = true;                // false: asking for one is an error
  engine::SamplingParams default_sampling;  // where a request says nothing
};

struct OutputOptions {
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  bool ledger = false;         // "fathom": {"ledger": true}
  bool logprobs = false;
  int32_t top_logprobs = 0;
};

// Relative to arrival: the parser reads no clock.
struct Timing {
  int64_t deadline_ms = 0;  // "fathom": {"deadline_ms": ...}; 0: none
};

struct ChatRequest {
  session::ChatParams params;
  OutputOptions output;
  Timing timing;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  session::GenerationParams params;  // for each prompt
  std::vector<Prompt> prompts;       // at least one
  bool echo = false;
  OutputOptions output;
  Timing timing;
};

struct TokenizeRequest {
  // Exactly one of the two is set.
  std::optional<std::string> prompt;
  std::optional<session::ChatParams> chat;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::vector<int32_t> tokens;
};

inline constexpr int32_t kMaxChoices = 128;
inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr size_t kMaxStopStrings = 16;

ApiResult<ChatRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits);
ApiResult<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                    const RequestLimits& limits);
ApiResult<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const RequestLimits& limits);
ApiResult<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                    const RequestLimits& limits);

// The body of an error response.
std::string ErrorBody(const ApiError& error);
// A request for another model than the one that is served.
ApiError UnknownModel(std::string_view model, const RequestLimits& limits);
// An error of the session or the engine as the client sees it; `param`: the field it came from.
ApiError ToApiError(const Error& error, std::string_view param = {});

}  // namespace fathom::server
