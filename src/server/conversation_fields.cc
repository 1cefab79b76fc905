#include <fmt/format.h>

#include <string>
#include <utility>

#include "server/request_state.h"

namespace fathom::server {
namespace {

using session::ChatMessage;
using session::ChatRole;

struct MessageState {
  ChatMessage message;
  bool has_role = false;
  bool has_content = false;
};

MaybeError ReadContent(const JsonValue& value, MessageState& state) {
  state.has_content = true;
  if (value.element.is_string()) return ReadString(value, &state.message.content);
  if (!value.element.is_array()) return InvalidType(value, "a string or an array of text parts");
  return ForEachItem(value, [&](const JsonValue& part) -> MaybeError {
    struct PartState {
      std::string type;
      std::optional<std::string> text;
    } part_state;
    static const std::vector<FieldHandler<PartState>> kFields = {
        {"type",
         [](const JsonValue& v, PartState& s) -> MaybeError {
           if (MaybeError error = ReadString(v, &s.type)) return error;
           if (s.type == "text") return Ok();
           return Unsupported(v, fmt::format("'{}' parts are not supported; only 'text'", s.type));
         }},
        {"text", [](const JsonValue& v, PartState& s) { return ReadString(v, &s.text.emplace()); }},
        {"image_url",
         [](const JsonValue& v, PartState&) -> MaybeError {
           return Unsupported(v, "this model reads text only");
         }},
    };
    if (MaybeError error = ReadObject(part, kFields, part_state)) return error;
    if (part_state.type.empty()) {
      return MissingField(part.path, "type");
    }
    if (!part_state.text) return MissingField(part.path, "text");
    state.message.content += *part_state.text;
    return Ok();
  });
}

MaybeError ReadToolCall(const JsonValue& value, session::ToolCall& call) {
  using session::ToolCall;
  static const std::vector<FieldHandler<ToolCall>> kFunction = {
      {"name", [](const JsonValue& v, ToolCall& s) { return ReadString(v, &s.name); }},
      {"arguments", [](const JsonValue& v, ToolCall& s) { return ReadString(v, &s.arguments); }},
  };
  static const std::vector<FieldHandler<ToolCall>> kFields = {
      {"id", [](const JsonValue& v, ToolCall& s) { return ReadString(v, &s.id); }},
      {"type", [](const JsonValue& v, ToolCall&) { return OnlyString(v, {"function"}); }},
      {"index",
       [](const JsonValue& v, ToolCall&) {
         int32_t ignored = 0;  // clients send a stream's deltas back as they came
         return ReadInt32(v, 0, INT32_MAX, &ignored);
       }},
      {"function", [](const JsonValue& v, ToolCall& s) { return ReadObject(v, kFunction, s); }},
  };
  if (MaybeError error = ReadObject(value, kFields, call)) return error;
  if (call.name.empty()) {
    return MissingField(value.path, "function.name");
  }
  return Ok();
}

MaybeError ReadMessage(const JsonValue& value, ChatMessage* out) {
  using S = MessageState;
  static const std::vector<FieldHandler<S>> kFields = {
      {"role",
       [](const JsonValue& v, S& s) -> MaybeError {
         std::string name;
         if (MaybeError error = ReadString(v, &name)) return error;
         const auto role = session::ChatRoleFromName(name);
         if (!role) {
           return InvalidValue(v, fmt::format("'{}' is not a role; the roles are system, "
                                              "developer, user, assistant, tool",
                                              name));
         }
         s.message.role = *role;
         s.has_role = true;
         return Ok();
       }},
      {"content", ReadContent},
      {"reasoning_content",
       [](const JsonValue& v, S& s) { return ReadString(v, &s.message.reasoning_content); }},
      {"tool_calls",
       [](const JsonValue& v, S& s) {
         return ForEachItem(v, [&](const JsonValue& item) {
           return ReadToolCall(item, s.message.tool_calls.emplace_back());
         });
       }},
      {"tool_call_id",
       [](const JsonValue& v, S& s) { return ReadString(v, &s.message.tool_call_id); }},
      {"prefix", [](const JsonValue& v, S& s) { return ReadBool(v, &s.message.prefix); }},
      {"name",
       [](const JsonValue& v, S& s) -> MaybeError {
         std::string ignored;
         if (MaybeError error = ReadString(v, &ignored)) return error;
         if (s.has_role && s.message.role == ChatRole::kTool) return Ok();
         return Unsupported(v, "the chat templates have no place for a speaker's name");
       }},
      // What an OpenAI response carries and clients send back.
      {"refusal",
       [](const JsonValue& v, S&) -> MaybeError { return Unsupported(v, "not supported"); }},
      {"audio",
       [](const JsonValue& v, S&) -> MaybeError { return Unsupported(v, "not supported"); }},
      {"function_call",
       [](const JsonValue& v, S&) -> MaybeError {
         return Unsupported(v, "not supported; use tool_calls");
       }},
      {"annotations",
       [](const JsonValue& v, S&) -> MaybeError {
         return ForEachItem(v, [](const JsonValue& item) -> MaybeError {
           return Unsupported(item, "not supported");
         });
       }},
  };
  MessageState state;
  if (MaybeError error = ReadObject(value, kFields, state)) return error;
  if (!state.has_role) return MissingField(value.path, "role");
  const ChatMessage& message = state.message;
  if (!state.has_content && message.tool_calls.empty()) return MissingField(value.path, "content");
  if (message.role != ChatRole::kAssistant &&
      (!message.tool_calls.empty() || !message.reasoning_content.empty() || message.prefix)) {
    return InvalidValue(value, "tool_calls, reasoning_content and prefix belong to the assistant");
  }
  *out = std::move(state.message);
  return Ok();
}

MaybeError ReadMessages(const JsonValue& value, RequestState& state) {
  state.has_messages = true;
  return ForEachItem(value, [&](const JsonValue& item) {
    return ReadMessage(item, &state.chat->messages.emplace_back());
  });
}

MaybeError ReadTool(const JsonValue& value, session::ToolDefinition& tool) {
  using session::ToolDefinition;
  static const std::vector<FieldHandler<ToolDefinition>> kFunction = {
      {"name", [](const JsonValue& v, ToolDefinition& s) { return ReadString(v, &s.name); }},
      {"description",
       [](const JsonValue& v, ToolDefinition& s) { return ReadString(v, &s.description); }},
      {"parameters",
       [](const JsonValue& v, ToolDefinition& s) -> MaybeError {
         if (!v.element.is_object()) return InvalidType(v, "an object");
         s.parameters = simdjson::minify(v.element);
         return Ok();
       }},
      {"strict",
       [](const JsonValue& v, ToolDefinition&) -> MaybeError {
         bool on = false;
         if (MaybeError error = ReadBool(v, &on)) return error;
         if (on) return Unsupported(v, "true is not supported");
         return Ok();
       }},
  };
  static const std::vector<FieldHandler<ToolDefinition>> kFields = {
      {"type", [](const JsonValue& v, ToolDefinition&) { return OnlyString(v, {"function"}); }},
      {"function",
       [](const JsonValue& v, ToolDefinition& s) { return ReadObject(v, kFunction, s); }},
  };
  if (MaybeError error = ReadObject(value, kFields, tool)) return error;
  if (tool.name.empty()) {
    return MissingField(value.path, "function.name");
  }
  return Ok();
}

MaybeError ReadTemplateArguments(const JsonValue& value, RequestState& state) {
  static const RequestFields kFields = {
      {"thinking", [](const JsonValue& v,
                      RequestState& s) { return ReadBool(v, &s.chat->thinking.emplace(false)); }},
      {"enable_thinking",
       [](const JsonValue& v, RequestState& s) {
         return ReadBool(v, &s.chat->thinking.emplace(false));
       }},
  };
  return ReadObject(value, kFields, state);
}

}  // namespace

const RequestFields& ConversationFields() {
  static const RequestFields kFields = {
      {"messages", ReadMessages},
      {"tools",
       [](const JsonValue& v, RequestState& s) {
         return ForEachItem(v, [&](const JsonValue& item) {
           return ReadTool(item, s.chat->tools.emplace_back());
         });
       }},
      {"chat_template_kwargs", ReadTemplateArguments},
      {"add_generation_prompt",
       [](const JsonValue& v, RequestState&) -> MaybeError {
         bool on = true;
         if (MaybeError error = ReadBool(v, &on)) return error;
         if (!on) return Unsupported(v, "false is not supported; see continue_final_message");
         return Ok();
       }},
      {"continue_final_message",
       [](const JsonValue& v, RequestState& s) { return ReadBool(v, &s.continue_final_message); }},
  };
  return kFields;
}

}  // namespace fathom::server
