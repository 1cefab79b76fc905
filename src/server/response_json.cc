#include "server/response_json.h"

#include <algorithm>
#include <utility>

namespace fathom::server {
namespace {

using engine::FinishReason;
using nlohmann::ordered_json;
using session::TokenLogprob;
using session::TokenText;

ordered_json FinishReasonJson(const ChoiceFinish& finish) {
  switch (finish.reason) {
    case FinishReason::kStop:
      return finish.called_tools ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
    case FinishReason::kError:
      break;
  }
  return nullptr;  // an error takes its place
}

ordered_json ChatTokenJson(const TokenText& token) {
  ordered_json bytes = ordered_json::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.bytes}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

ordered_json ChatLogprobs(const std::vector<TokenLogprob>& tokens) {
  ordered_json content = ordered_json::array();
  for (const TokenLogprob& token : tokens) {
    ordered_json row = ChatTokenJson(token);
    row["top_logprobs"] = ordered_json::array();
    for (const TokenText& top : token.top) row["top_logprobs"].push_back(ChatTokenJson(top));
    content.push_back(std::move(row));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// `offset` is where the first token's text starts and moves behind the last, in bytes.
ordered_json CompletionLogprobs(const std::vector<TokenLogprob>& tokens, int64_t* offset) {
  ordered_json out = {{"tokens", ordered_json::array()},
                      {"token_logprobs", ordered_json::array()},
                      {"top_logprobs", ordered_json::array()},
                      {"text_offset", ordered_json::array()}};
  for (const TokenLogprob& token : tokens) {
    out["tokens"].push_back(token.bytes);
    out["token_logprobs"].push_back(token.logprob);
    ordered_json top = ordered_json::object();
    for (const TokenText& t : token.top) top[t.bytes] = t.logprob;
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(*offset);
    *offset += static_cast<int64_t>(token.bytes.size());
  }
  return out;
}

ordered_json UsageJson(const UsageTotals& usage) {
  ordered_json out = {{"prompt_tokens", usage.prompt_tokens},
                      {"completion_tokens", usage.completion_tokens},
                      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  out["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  out["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

ordered_json ToolCallsJson(const std::vector<session::ToolCallDelta>& calls, bool stream) {
  ordered_json out = ordered_json::array();
  for (const session::ToolCallDelta& call : calls) {
    ordered_json row = ordered_json::object();
    if (stream) row["index"] = call.index;
    if (!call.id.empty()) row["id"] = call.id;
    if (!call.id.empty() || !stream) row["type"] = "function";
    row["function"] = ordered_json::object();
    if (!call.name.empty()) row["function"]["name"] = call.name;
    row["function"]["arguments"] = call.arguments;
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

ChoiceFinish KeepFinish(const session::Finish& finish) {
  ChoiceFinish out{.reason = finish.reason,
                   .called_tools = finish.called_tools,
                   .usage = finish.usage,
                   .reasoning_tokens = finish.reasoning_tokens};
  switch (finish.reason) {
    case FinishReason::kError:
      out.error = ToApiError(finish.error != nullptr ? *finish.error
                                                     : Error{Code::kInternal, "the engine failed"});
      if (out.error->status < 500) {  // the request was good when it was taken
        out.error->status = 500;
        out.error->type = "server_error";
      }
      break;
    case FinishReason::kDeadline:
      out.error = ToApiError({Code::kDeadlineExceeded, "the request's deadline passed"});
      break;
    case FinishReason::kCancelled:
      out.error = ToApiError({Code::kUnavailable, "the server ended the request"});
      break;
    case FinishReason::kStop:
    case FinishReason::kLength:
      break;
  }
  return out;
}

void ChoiceText::Append(session::TextDelta delta) {
  all.content += delta.content;
  all.reasoning_content += delta.reasoning_content;
  all.num_tokens += delta.num_tokens;
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(all.logprobs));
  for (session::ToolCallDelta& call : delta.tool_calls) {
    auto same = std::find_if(all.tool_calls.begin(), all.tool_calls.end(),
                             [&](const auto& c) { return c.index == call.index; });
    if (same == all.tool_calls.end()) {
      all.tool_calls.push_back(std::move(call));
    } else {
      same->id += call.id;
      same->name += call.name;
      same->arguments += call.arguments;
    }
  }
}

UsageTotals SumUsage(const std::vector<ChoiceText>& choices, int32_t n) {
  UsageTotals out;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].finish) continue;
    const ChoiceFinish& finish = *choices[i].finish;
    if (i % static_cast<size_t>(n) == 0) {
      out.prompt_tokens += finish.usage.prompt_tokens;
      out.cached_tokens += finish.usage.cached_prompt_tokens;
    }
    out.completion_tokens += finish.usage.generated_tokens;
    out.reasoning_tokens += finish.reasoning_tokens;
  }
  return out;
}

std::string Dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json ResponseText::Head(bool chunk) const {
  const char* object = kind_ == ResponseKind::kCompletion ? "text_completion"
                       : chunk                            ? "chat.completion.chunk"
                                                          : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string ResponseText::Whole(const std::vector<ChoiceText>& choices, const UsageTotals& usage,
                                const std::vector<std::string>& echo,
                                const ordered_json& ledger) const {
  ordered_json out = Head(false);
  out["choices"] = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const session::TextDelta& text = choices[i].all;
    ordered_json row = {{"index", i}};
    row["logprobs"] = nullptr;
    if (kind_ == ResponseKind::kChat) {
      ordered_json message = {{"role", "assistant"}, {"content", text.content}};
      message["refusal"] = nullptr;
      if (!text.reasoning_content.empty()) message["reasoning_content"] = text.reasoning_content;
      if (!text.tool_calls.empty()) {
        message["tool_calls"] = ToolCallsJson(text.tool_calls, false);
        if (text.content.empty()) message["content"] = nullptr;
      }
      row["message"] = std::move(message);
      if (output_.logprobs) row["logprobs"] = ChatLogprobs(text.logprobs);
    } else {
      const std::string before = echo.empty() ? "" : echo[i];
      row["text"] = before + text.content;
      auto offset = static_cast<int64_t>(before.size());
      if (output_.logprobs) row["logprobs"] = CompletionLogprobs(text.logprobs, &offset);
    }
    row["finish_reason"] = FinishReasonJson(*choices[i].finish);
    out["choices"].push_back(std::move(row));
  }
  out["usage"] = UsageJson(usage);
  if (!ledger.is_null()) out["fathom"] = {{"ledger", ledger}};
  return Dump(out);
}

std::string ResponseText::Delta(int32_t choice, const session::TextDelta& delta, bool first) {
  ordered_json row = {{"index", choice}};
  if (kind_ == ResponseKind::kChat) {
    ordered_json d = ordered_json::object();
    if (first) d["role"] = "assistant";
    if (!delta.reasoning_content.empty()) d["reasoning_content"] = delta.reasoning_content;
    if (!delta.content.empty() || first) d["content"] = delta.content;
    if (!delta.tool_calls.empty()) d["tool_calls"] = ToolCallsJson(delta.tool_calls, true);
    row["delta"] = std::move(d);
    row["logprobs"] = nullptr;
    if (output_.logprobs) row["logprobs"] = ChatLogprobs(delta.logprobs);
  } else {
    row["text"] = delta.content;
    row["logprobs"] = nullptr;
    if (output_.logprobs) {
      const auto index = static_cast<size_t>(choice);
      if (text_offsets_.size() <= index) text_offsets_.resize(index + 1, 0);
      row["logprobs"] = CompletionLogprobs(delta.logprobs, &text_offsets_[index]);
    }
  }
  row["finish_reason"] = nullptr;
  ordered_json out = Head(true);
  out["choices"] = ordered_json::array({std::move(row)});
  if (output_.include_usage) out["usage"] = nullptr;
  return Dump(out);
}

std::string ResponseText::Finished(int32_t choice, const ChoiceFinish& finish) const {
  ordered_json row = {{"index", choice}};
  if (kind_ == ResponseKind::kChat) {
    row["delta"] = ordered_json::object();
  } else {
    row["text"] = "";
  }
  row["logprobs"] = nullptr;
  row["finish_reason"] = FinishReasonJson(finish);
  ordered_json out = Head(true);
  out["choices"] = ordered_json::array({std::move(row)});
  if (output_.include_usage) out["usage"] = nullptr;
  return Dump(out);
}

std::string ResponseText::Last(const UsageTotals& usage, const ordered_json& ledger) const {
  if (!output_.include_usage && ledger.is_null()) return {};
  ordered_json out = Head(true);
  out["choices"] = ordered_json::array();
  if (output_.include_usage) out["usage"] = UsageJson(usage);
  if (!ledger.is_null()) out["fathom"] = {{"ledger", ledger}};
  return Dump(out);
}

namespace {

ordered_json ModelRow(const session::ModelInfo& model, int64_t created_unix_s) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created_unix_s},
          {"owned_by", "fathom"},
          {"max_model_len", model.max_context_tokens}};
}

}  // namespace

std::string ModelBody(const session::ModelInfo& model, int64_t created_unix_s) {
  return Dump(ModelRow(model, created_unix_s));
}

std::string ModelsBody(const session::ModelInfo& model, int64_t created_unix_s) {
  return Dump(
      {{"object", "list"}, {"data", ordered_json::array({ModelRow(model, created_unix_s)})}});
}

std::string TokenizeBody(const std::vector<int32_t>& tokens,
                         const std::optional<std::vector<std::string>>& token_strs,
                         int32_t max_context_tokens) {
  ordered_json out = {
      {"count", tokens.size()}, {"max_model_len", max_context_tokens}, {"tokens", tokens}};
  out["token_strs"] = nullptr;
  if (token_strs) out["token_strs"] = *token_strs;
  return Dump(out);
}

std::string DetokenizeBody(const std::string& text) { return Dump(ordered_json{{"prompt", text}}); }

}  // namespace fathom::server
