#pragma once
// Conversations to prompts, as the Jinja templates that DeepSeek publishes render them, without
// Jinja. A model's template is recognised by its hash: what looks like it but is not it may place a
// token elsewhere, so an unknown one is an error until the user names the family to use.
//
// Quirks of the published templates are kept (the first models' templates forget to close a single
// tool call, for one): a model was trained on what its template produces.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace fathom::text {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

struct ChatToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  // Assistant. Dropped from the history, as every template does with thinking; in a prefix it is
  // the thinking to go on from, closed where there is content too.
  std::string reasoning_content;
  std::vector<ChatToolCall> tool_calls;  // assistant; empty content then counts as none
  // The last message, assistant: the answer goes on from it instead of starting anew.
  bool prefix = false;
};

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters;  // a JSON schema as text
};

struct ChatOptions {
  std::optional<bool> thinking;  // families with a switch (deepseek-v3.1); off by default
  std::vector<ChatTool> tools;   // families that describe tools (deepseek-v3.1, not thinking)
};

struct RenderedChat {
  std::string text;            // begins with the model's BOS
  bool thinking_open = false;  // it ends inside <think>: what comes first is reasoning
};

// How a family's answers show thinking.
enum class Thinking : uint8_t {
  kNone,      // never: "<think>" is text
  kByModel,   // the model may begin with <think>
  kTemplate,  // the template opens <think>
  kSwitch,    // the template opens it where ChatOptions::thinking says so
};

// How a family's answers show tool calls (text/tool_calls.h).
enum class ToolCallFormat : uint8_t {
  kNone,
  kFenced,  // function<｜tool▁sep｜>NAME and the arguments in a ```json block
  kPlain,   // NAME<｜tool▁sep｜>ARGUMENTS
};

class ChatTemplate {
 public:
  // The template of the model that `tokenizer` belongs to, or, where given, of a family by name.
  static Result<ChatTemplate> Select(const Tokenizer& tokenizer,
                                     std::string_view forced_family = "");

  // What --chat-template takes.
  static std::vector<std::string_view> Families();

  std::string_view family() const;
  Thinking thinking() const;
  ToolCallFormat tool_call_format() const;

  // The prompt up to where the model's answer begins. Errors: no messages, a role or field out of
  // place, an option that the family does not have.
  Result<RenderedChat> Render(std::span<const ChatMessage> messages,
                              const ChatOptions& options = {}) const;

 private:
  struct Style;
  class Renderer;
  static std::span<const Style> Styles();

  ChatTemplate(const Style& style, std::string bos, std::string eos);

  const Style* style_;
  std::string bos_;
  std::string eos_;
};

struct EncodedChat {
  std::vector<int32_t> ids;
  bool thinking_open = false;
};

// Renders and tokenises: control tokens are parsed, BOS is there once.
Result<EncodedChat> EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages,
                               const ChatOptions& options = {});

// The hash by which a template is known: of its source without trailing line ends.
uint64_t ChatTemplateHash(std::string_view source);

}  // namespace fathom::text
