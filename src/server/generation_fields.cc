#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "server/request_state.h"

namespace fathom::server {

ApiError UnknownModel(std::string_view model, const RequestLimits& limits) {
  return {.status = 404,
          .message = fmt::format("the model '{}' does not exist here; this server serves '{}'",
                                 model, limits.model),
          .param = "model",
          .code = "model_not_found"};
}

MaybeError ReadModel(const JsonValue& value, RequestState& state) {
  std::string model;
  if (MaybeError error = ReadString(value, &model)) return error;
  if (model == state.limits.model) return Ok();
  return UnknownModel(model, state.limits);
}

MaybeError ReadMaxTokens(const JsonValue& value, const RequestLimits& limits,
                         std::optional<int32_t>* out) {
  int64_t number = 0;
  if (MaybeError error = ReadInt(value, 1, INT64_MAX, &number)) return error;
  if (number > limits.max_context_tokens) {
    return ApiError{
        .message = fmt::format("{}: {} exceeds this model's context of {} tokens, which prompt and "
                               "answer share",
                               value.path, number, limits.max_context_tokens),
        .param = value.path,
        .code = "context_length_exceeded"};
  }
  *out = static_cast<int32_t>(number);
  return Ok();
}

ApiError MissingField(std::string_view path, std::string_view name) {
  const std::string full = path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  return {.message = fmt::format("missing required parameter: '{}'", full),
          .param = full,
          .code = "missing_required_parameter"};
}

namespace {

MaybeError ReadStop(const JsonValue& value, RequestState& state) {
  auto add = [&](const JsonValue& item) -> MaybeError {
    std::string text;
    if (MaybeError error = ReadString(item, &text)) return error;
    if (text.empty()) return InvalidValue(item, "a stop string must not be empty");
    if (state.generation->stop.size() == kMaxStopStrings) {
      return InvalidValue(value, fmt::format("at most {} stop strings", kMaxStopStrings));
    }
    state.generation->stop.push_back(std::move(text));
    return Ok();
  };
  if (value.element.is_string()) return add(value);
  if (!value.element.is_array()) return InvalidType(value, "a string or an array of strings");
  return ForEachItem(value, add);
}

MaybeError ReadLogitBias(const JsonValue& value, RequestState& state) {
  simdjson::dom::object object;
  if (value.element.get(object) != simdjson::SUCCESS) return InvalidType(value, "an object");
  for (const auto& [key, element] : object) {
    const JsonValue item = value.Field(key, element);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= state.limits.vocab_size) {
      return InvalidValue(item,
                          fmt::format("keys are token ids, 0 to {}", state.limits.vocab_size - 1));
    }
    float bias = 0;
    if (MaybeError bad = ReadFloat(item, -100, 100, false, &bias)) return bad;
    state.generation->sampling.logit_bias.emplace_back(id, bias);
  }
  return Ok();
}

MaybeError ReadStreamOptions(const JsonValue& value, RequestState& state) {
  static const RequestFields kFields = {
      {"include_usage",
       [](const JsonValue& v, RequestState& s) {
         s.include_usage_given = true;
         return ReadBool(v, &s.output->include_usage);
       }},
      {"include_obfuscation",
       [](const JsonValue& v, RequestState&) -> MaybeError {
         bool on = false;
         if (MaybeError error = ReadBool(v, &on)) return error;
         if (on) return Unsupported(v, "padding of stream chunks is not supported");
         return Ok();
       }},
  };
  state.include_usage_given = true;
  return ReadObject(value, kFields, state);
}

MaybeError ReadFathom(const JsonValue& value, RequestState& state) {
  static const RequestFields kFields = {
      {"ledger",
       [](const JsonValue& v, RequestState& s) -> MaybeError {
         if (MaybeError error = ReadBool(v, &s.output->ledger)) return error;
         if (!s.output->ledger || s.limits.keeps_ledgers) return Ok();
         return Unsupported(v,
                            "this server records no events (--no-events), so it keeps no ledger");
       }},
      {"deadline_ms",
       [](const JsonValue& v, RequestState& s) {
         constexpr int64_t kDayMs = 86'400'000;
         return ReadInt(v, 1, kDayMs, &s.timing->deadline_ms);
       }},
  };
  return ReadObject(value, kFields, state);
}

}  // namespace

MaybeError OnlyString(const JsonValue& value, std::initializer_list<std::string_view> harmless) {
  std::string text;
  if (MaybeError error = ReadString(value, &text)) return error;
  for (const std::string_view h : harmless) {
    if (text == h) return Ok();
  }
  std::string list;
  for (const std::string_view h : harmless)
    list += fmt::format("{}'{}'", list.empty() ? "" : ", ", h);
  return Unsupported(value, fmt::format("'{}' is not supported; only {}", text, list));
}
MaybeError OnlyFalse(const JsonValue& value, RequestState&) {
  bool on = false;
  if (MaybeError error = ReadBool(value, &on)) return error;
  return on ? MaybeError(Unsupported(value, "true is not supported")) : Ok();
}
MaybeError OnlyNull(const JsonValue& value, RequestState&) {
  return Unsupported(value, "not supported");
}
MaybeError AnyString(const JsonValue& value, RequestState&) {
  std::string ignored;
  return ReadString(value, &ignored);
}

const RequestFields& GenerationFields() {
  static const RequestFields kFields = {
      {"model", ReadModel},
      {"n", [](const JsonValue& v,
               RequestState& s) { return ReadInt32(v, 1, kMaxChoices, &s.generation->n); }},
      {"max_tokens", [](const JsonValue& v,
                        RequestState& s) { return ReadMaxTokens(v, s.limits, &s.max_tokens); }},
      {"temperature",
       [](const JsonValue& v, RequestState& s) {
         return ReadFloat(v, 0, 2, false, &s.generation->sampling.temperature);
       }},
      {"top_p",
       [](const JsonValue& v, RequestState& s) {
         return ReadFloat(v, 0, 1, true, &s.generation->sampling.top_p);
       }},
      {"top_k",
       [](const JsonValue& v, RequestState& s) -> MaybeError {
         int32_t top_k = 0;
         if (MaybeError error = ReadInt32(v, -1, INT32_MAX, &top_k)) return error;
         s.generation->sampling.top_k = std::max(top_k, 0);  // -1 and 0 both mean off
         return Ok();
       }},
      {"min_p",
       [](const JsonValue& v, RequestState& s) -> MaybeError {
         if (MaybeError error = ReadFloat(v, 0, 1, false, &s.generation->sampling.min_p)) {
           return error;
         }
         if (s.generation->sampling.min_p >= 1) return InvalidValue(v, "must be less than 1");
         return Ok();
       }},
      {"presence_penalty",
       [](const JsonValue& v, RequestState& s) {
         return ReadFloat(v, -2, 2, false, &s.generation->sampling.presence_penalty);
       }},
      {"frequency_penalty",
       [](const JsonValue& v, RequestState& s) {
         return ReadFloat(v, -2, 2, false, &s.generation->sampling.frequency_penalty);
       }},
      {"repetition_penalty",
       [](const JsonValue& v, RequestState& s) {
         return ReadFloat(v, 0, 10, true, &s.generation->sampling.repetition_penalty);
       }},
      {"seed",
       [](const JsonValue& v, RequestState& s) -> MaybeError {
         int64_t seed = 0;
         if (MaybeError error = ReadInt(v, INT64_MIN, INT64_MAX, &seed)) return error;
         s.generation->sampling.seed = static_cast<uint64_t>(seed);
         return Ok();
       }},
      {"stop", ReadStop},
      {"stop_token_ids",
       [](const JsonValue& v, RequestState& s) {
         return ReadTokenIds(v, s.limits.vocab_size, &s.generation->stop_token_ids);
       }},
      {"ignore_eos",
       [](const JsonValue& v, RequestState& s) { return ReadBool(v, &s.generation->ignore_eos); }},
      {"logit_bias", ReadLogitBias},
      {"priority",
       [](const JsonValue& v, RequestState& s) {
         return ReadInt32(v, INT32_MIN, INT32_MAX, &s.generation->priority);
       }},
      {"cache_salt",
       [](const JsonValue& v, RequestState& s) { return ReadString(v, &s.generation->tenant); }},
      {"stream",
       [](const JsonValue& v, RequestState& s) { return ReadBool(v, &s.output->stream); }},
      {"stream_options", ReadStreamOptions},
      {"fathom", ReadFathom},
      {"user", AnyString},  // says who the end user is; changes nothing
      // What vLLM's clients send; taken at the values that change nothing.
      {"skip_special_tokens",
       [](const JsonValue& v, RequestState&) -> MaybeError {
         bool skip = true;
         if (MaybeError error = ReadBool(v, &skip)) return error;
         return skip ? Ok() : MaybeError(Unsupported(v, "false is not supported"));
       }},
      {"include_stop_str_in_output", OnlyFalse},
      {"use_beam_search", OnlyFalse},
      {"min_tokens",
       [](const JsonValue& v, RequestState&) -> MaybeError {
         int32_t n = 0;
         if (MaybeError error = ReadInt32(v, 0, INT32_MAX, &n)) return error;
         return n == 0 ? Ok() : MaybeError(Unsupported(v, "only 0 is supported"));
       }},
  };
  return kFields;
}

}  // namespace fathom::server
