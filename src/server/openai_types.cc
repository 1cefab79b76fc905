#include "server/openai_types.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/request_state.h"

namespace fathom::server {
namespace {

using session::ChatMessage;
using session::ChatRole;

RequestFields Concatenate(const RequestFields& a, RequestFields b) {
  b.insert(b.begin(), a.begin(), a.end());
  return b;
}

const RequestFields& ChatFields() {
  static const RequestFields kFields = Concatenate(
      GenerationFields(),
      Concatenate(
          ConversationFields(),
          {
              {"max_completion_tokens",
               [](const JsonValue& v, RequestState& s) {
                 return ReadMaxTokens(v, s.limits, &s.max_completion_tokens);
               }},
              {"logprobs", [](const JsonValue& v,
                              RequestState& s) { return ReadBool(v, &s.output->logprobs); }},
              {"top_logprobs",
               [](const JsonValue& v, RequestState& s) {
                 return ReadInt32(v, 0, kMaxTopLogprobs, &s.top_logprobs.emplace(0));
               }},
              {"tool_choice",
               [](const JsonValue& v, RequestState& s) -> MaybeError {
                 if (!v.element.is_string()) {
                   return Unsupported(v, "forcing one tool is not supported; 'auto' or 'none'");
                 }
                 if (MaybeError error = OnlyString(v, {"auto", "none"})) return error;
                 s.tools_off = std::string_view(v.element) == "none";
                 return Ok();
               }},
              {"parallel_tool_calls",
               [](const JsonValue& v, RequestState&) -> MaybeError {
                 bool on = true;
                 if (MaybeError error = ReadBool(v, &on)) return error;
                 if (!on) return Unsupported(v, "false is not supported");
                 return Ok();
               }},
              {"response_format",
               [](const JsonValue& v, RequestState& s) {
                 static const RequestFields kFormat = {
                     {"type",
                      [](const JsonValue& t, RequestState&) { return OnlyString(t, {"text"}); }},
                     {"json_schema", OnlyNull},
                 };
                 return ReadObject(v, kFormat, s);
               }},
              {"modalities",
               [](const JsonValue& v, RequestState&) {
                 return ForEachItem(
                     v, [](const JsonValue& item) { return OnlyString(item, {"text"}); });
               }},
              {"service_tier",
               [](const JsonValue& v, RequestState&) {
                 return OnlyString(v, {"auto", "default"});
               }},
              {"verbosity",
               [](const JsonValue& v, RequestState&) { return OnlyString(v, {"medium"}); }},
              {"metadata",
               [](const JsonValue& v, RequestState&) -> MaybeError {
                 if (!v.element.is_object()) return InvalidType(v, "an object");
                 return Ok();
               }},
              {"safety_identifier", AnyString},
              {"prompt_cache_key", AnyString},  // the prefix cache needs no hint
              {"store", OnlyFalse},
              {"audio", OnlyNull},
              {"function_call", OnlyNull},
              {"functions", OnlyNull},
              {"prediction", OnlyNull},
              {"reasoning_effort", OnlyNull},
              {"web_search_options", OnlyNull},
          }));
  return kFields;
}

// ---- completions -------------------------------------------------------------------------------

MaybeError ReadPrompt(const JsonValue& value, RequestState& state) {
  state.has_prompt = true;
  std::vector<Prompt>& prompts = state.completion->prompts;
  auto add_text = [&](const JsonValue& item) -> MaybeError {
    std::string text;
    if (MaybeError error = ReadString(item, &text)) return error;
    prompts.emplace_back(std::move(text));
    return Ok();
  };
  auto add_tokens = [&](const JsonValue& item) -> MaybeError {
    std::vector<int32_t> ids;
    if (MaybeError error = ReadTokenIds(item, state.limits.vocab_size, &ids)) return error;
    if (ids.empty()) return InvalidValue(item, "a prompt of token ids must not be empty");
    prompts.emplace_back(std::move(ids));
    return Ok();
  };
  if (value.element.is_string()) return add_text(value);
  simdjson::dom::array array;
  if (value.element.get(array) != simdjson::SUCCESS) {
    return InvalidType(value, "a string, an array of strings, of token ids, or of arrays of them");
  }
  if (array.size() == 0) return InvalidValue(value, "must hold at least one prompt");
  const simdjson::dom::element first = *array.begin();
  if (!first.is_string() && !first.is_array()) return add_tokens(value);
  constexpr size_t kMaxPrompts = 128;
  if (array.size() > kMaxPrompts) {
    return InvalidValue(value, fmt::format("at most {} prompts a request", kMaxPrompts));
  }
  return ForEachItem(value, [&](const JsonValue& item) {
    return item.element.is_array() ? add_tokens(item) : add_text(item);
  });
}

const RequestFields& CompletionFields() {
  static const RequestFields kFields = Concatenate(
      GenerationFields(),
      {
          {"prompt", ReadPrompt},
          {"echo",
           [](const JsonValue& v, RequestState& s) { return ReadBool(v, &s.completion->echo); }},
          {"logprobs",
           [](const JsonValue& v, RequestState& s) {
             s.output->logprobs = true;
             return ReadInt32(v, 0, kMaxTopLogprobs, &s.top_logprobs.emplace(0));
           }},
          {"best_of",
           [](const JsonValue& v, RequestState&) -> MaybeError {
             int32_t n = 1;
             if (MaybeError error = ReadInt32(v, 1, 20, &n)) return error;
             return n == 1 ? Ok() : MaybeError(Unsupported(v, "only 1 is supported; see n"));
           }},
          {"suffix", [](const JsonValue& v, RequestState&) { return OnlyString(v, {""}); }},
      });
  return kFields;
}

// ---- /tokenize and /detokenize -----------------------------------------------------------------

const RequestFields& TokenizeFields() {
  static const RequestFields kFields = Concatenate(
      ConversationFields(),
      {
          {"model", ReadModel},
          {"prompt", [](const JsonValue& v,
                        RequestState& s) { return ReadString(v, &s.tokenize->prompt.emplace()); }},
          {"add_special_tokens",
           [](const JsonValue& v, RequestState& s) {
             return ReadBool(v, &s.tokenize->add_special_tokens);
           }},
          {"return_token_strs",
           [](const JsonValue& v, RequestState& s) {
             return ReadBool(v, &s.tokenize->return_token_strs);
           }},
      });
  return kFields;
}

const RequestFields& DetokenizeFields() {
  static const RequestFields kFields = {
      {"model", ReadModel},
      {"tokens",
       [](const JsonValue& v, RequestState& s) {
         s.has_prompt = true;
         return ReadTokenIds(v, s.limits.vocab_size, &s.detokenize->tokens);
       }},
  };
  return kFields;
}

// ---- whole requests ----------------------------------------------------------------------------

MaybeError ReadBody(std::string_view body, const RequestFields& fields, RequestState& state) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const auto error = parser.parse(body.data(), body.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return ApiError{
        .message = fmt::format("the request body is not JSON: {}", simdjson::error_message(error)),
        .code = "invalid_json"};
  }
  return ReadObject({root, ""}, fields, state);
}

MaybeError FinishChat(RequestState& state) {
  session::ChatParams& chat = *state.chat;
  if (!state.has_messages) return MissingField("", "messages");
  if (chat.messages.empty()) {
    return ApiError{.message = "messages: must hold at least one message",
                    .param = "messages",
                    .code = "invalid_value"};
  }
  if (!state.limits.has_chat_template) {
    return ApiError{.message = fmt::format("the model '{}' has no chat template; use "
                                           "/v1/completions, or start the server with "
                                           "--chat-template",
                                           state.limits.model),
                    .param = "messages",
                    .code = "unsupported_parameter"};
  }
  ChatMessage& last = chat.messages.back();
  if (state.continue_final_message) {
    if (last.role != ChatRole::kAssistant) {
      return ApiError{.message = "continue_final_message: the last message is not the assistant's",
                      .param = "continue_final_message",
                      .code = "invalid_value"};
    }
    last.prefix = true;
  }
  for (size_t i = 0; i + 1 < chat.messages.size(); ++i) {
    if (chat.messages[i].prefix) {
      return ApiError{.message = "prefix: only the last message can be continued",
                      .param = fmt::format("messages[{}].prefix", i),
                      .code = "invalid_value"};
    }
  }
  if (state.tools_off) chat.tools.clear();
  return Ok();
}

MaybeError FinishGeneration(RequestState& state) {
  if (state.max_tokens && state.max_completion_tokens &&
      *state.max_tokens != *state.max_completion_tokens) {
    return ApiError{.message = "max_tokens and max_completion_tokens differ; give one",
                    .param = "max_completion_tokens",
                    .code = "invalid_value"};
  }
  state.generation->max_tokens =
      state.max_completion_tokens ? state.max_completion_tokens : state.max_tokens;
  if (state.include_usage_given && !state.output->stream) {
    return ApiError{.message = "stream_options: only with stream = true",
                    .param = "stream_options",
                    .code = "invalid_value"};
  }
  if (state.top_logprobs && !state.output->logprobs) {
    return ApiError{.message = "top_logprobs: only with logprobs = true",
                    .param = "top_logprobs",
                    .code = "invalid_value"};
  }
  if (state.output->logprobs) {
    state.output->top_logprobs = state.top_logprobs.value_or(0);
    state.generation->sampling.top_logprobs = state.output->top_logprobs;
  }
  return Ok();
}

}  // namespace

ApiResult<ChatRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  ChatRequest request;
  RequestState state{.limits = limits,
                     .generation = &request.params,
                     .chat = &request.params,
                     .output = &request.output,
                     .timing = &request.timing};
  request.params.sampling = limits.default_sampling;
  if (MaybeError error = ReadBody(body, ChatFields(), state)) return tl::unexpected(*error);
  if (MaybeError error = FinishGeneration(state)) return tl::unexpected(*error);
  if (MaybeError error = FinishChat(state)) return tl::unexpected(*error);
  return request;
}

ApiResult<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                    const RequestLimits& limits) {
  CompletionRequest request;
  RequestState state{.limits = limits,
                     .generation = &request.params,
                     .completion = &request,
                     .output = &request.output,
                     .timing = &request.timing};
  request.params.sampling = limits.default_sampling;
  if (MaybeError error = ReadBody(body, CompletionFields(), state)) return tl::unexpected(*error);
  if (MaybeError error = FinishGeneration(state)) return tl::unexpected(*error);
  if (!state.has_prompt) return tl::unexpected(MissingField("", "prompt"));
  if (request.echo && request.output.logprobs) {
    return tl::unexpected(ApiError{.message = "echo: log probabilities of the prompt are not "
                                              "supported; give echo or logprobs",
                                   .param = "echo",
                                   .code = "unsupported_parameter"});
  }
  if (request.prompts.size() * static_cast<size_t>(request.params.n) > kMaxChoices) {
    return tl::unexpected(
        ApiError{.message = fmt::format("prompt: {} prompts with n = {} exceed "
                                        "{} choices a request",
                                        request.prompts.size(), request.params.n, kMaxChoices),
                 .param = "n",
                 .code = "invalid_value"});
  }
  return request;
}

ApiResult<TokenizeRequest> ParseTokenizeRequest(std::string_view body,
                                                const RequestLimits& limits) {
  TokenizeRequest request;
  session::ChatParams chat;
  RequestState state{.limits = limits, .chat = &chat, .tokenize = &request};
  if (MaybeError error = ReadBody(body, TokenizeFields(), state)) return tl::unexpected(*error);
  if (state.has_messages == request.prompt.has_value()) {
    return tl::unexpected(ApiError{.message = "give either prompt or messages",
                                   .param = "prompt",
                                   .code = "missing_required_parameter"});
  }
  if (state.has_messages) {
    if (MaybeError error = FinishChat(state)) return tl::unexpected(*error);
    request.chat = std::move(chat);
  }
  return request;
}

ApiResult<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                    const RequestLimits& limits) {
  DetokenizeRequest request;
  RequestState state{.limits = limits, .detokenize = &request};
  if (MaybeError error = ReadBody(body, DetokenizeFields(), state)) return tl::unexpected(*error);
  if (!state.has_prompt) return tl::unexpected(MissingField("", "tokens"));
  return request;
}

std::string ErrorBody(const ApiError& error) {
  nlohmann::ordered_json out;
  out["error"] = {{"message", error.message}, {"type", error.type}};
  out["error"]["param"] = nullptr;
  out["error"]["code"] = nullptr;
  if (!error.param.empty()) out["error"]["param"] = error.param;
  if (!error.code.empty()) out["error"]["code"] = error.code;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ApiError ToApiError(const Error& error, std::string_view param) {
  switch (error.code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
      return {.message = error.message, .param = std::string(param), .code = "invalid_value"};
    case Code::kOutOfRange:
      return {
          .message = error.message, .param = std::string(param), .code = "context_length_exceeded"};
    case Code::kNotFound:
      return {.status = 404, .message = error.message, .code = "not_found"};
    case Code::kResourceExhausted:
      return {.status = 429,
              .message = error.message,
              .code = "queue_full",
              .type = "rate_limit_error"};
    case Code::kUnavailable:
      return {
          .status = 503, .message = error.message, .code = "unavailable", .type = "server_error"};
    case Code::kDeadlineExceeded:
    case Code::kCancelled:
      return {.status = 504,
              .message = error.message,
              .code = "deadline_exceeded",
              .type = "server_error"};
    case Code::kDataLoss:
    case Code::kInternal:
      break;
  }
  return {.status = 500, .message = error.message, .code = "internal", .type = "server_error"};
}

}  // namespace fathom::server
