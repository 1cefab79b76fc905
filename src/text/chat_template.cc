#include "text/chat_template.h"

#include <fmt/ranges.h>

#include <utility>

#include "base/strings.h"

namespace fathom::text {
namespace {

constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kToolSep = "<｜tool▁sep｜>";
constexpr std::string_view kOutputsBegin = "<｜tool▁outputs▁begin｜>";
constexpr std::string_view kOutputsEnd = "<｜tool▁outputs▁end｜>";
constexpr std::string_view kOutputBegin = "<｜tool▁output▁begin｜>";
constexpr std::string_view kOutputEnd = "<｜tool▁output▁end｜>";

enum class System : uint8_t { kLast, kJoined };                    // of several system messages
enum class Strip : uint8_t { kNothing, kToLastEnd, kToFirstEnd };  // thinking in the history
enum class Tools : uint8_t { kNone, kV25, kR1, kR10528, kV31 };

}  // namespace

struct ChatTemplate::Style {
  std::string_view family;
  System system;
  Strip strip;
  Tools tools;
  Thinking thinking;
  bool newline_between_outputs;
  bool plain = false;  // "User: " and "Assistant: " in letters
};

std::span<const ChatTemplate::Style> ChatTemplate::Styles() {
  static constexpr Style kStyles[] = {
      {"deepseek-v2", System::kJoined, Strip::kNothing, Tools::kNone, Thinking::kNone, false, true},
      {"deepseek-v2.5", System::kLast, Strip::kNothing, Tools::kV25, Thinking::kNone, true},
      {"deepseek-v3", System::kJoined, Strip::kNothing, Tools::kV25, Thinking::kNone, true},
      {"deepseek-v3.1", System::kJoined, Strip::kToFirstEnd, Tools::kV31, Thinking::kSwitch, false},
      {"deepseek-r1", System::kJoined, Strip::kToLastEnd, Tools::kR1, Thinking::kTemplate, false},
      {"deepseek-r1-unopened", System::kJoined, Strip::kToLastEnd, Tools::kR1, Thinking::kByModel,
       false},
      {"deepseek-r1-0528", System::kJoined, Strip::kToLastEnd, Tools::kR10528, Thinking::kByModel,
       true},
      {"deepseek-r1-distill", System::kLast, Strip::kToLastEnd, Tools::kV25, Thinking::kTemplate,
       true},
      {"deepseek-r1-distill-unopened", System::kLast, Strip::kToLastEnd, Tools::kV25,
       Thinking::kByModel, true},
      {"fathom-tiny", System::kLast, Strip::kToLastEnd, Tools::kNone, Thinking::kTemplate, false},
  };
  return kStyles;
}

namespace {

struct KnownTemplate {
  uint64_t hash;
  std::string_view family;
};

// Hashes of published templates; tests/text/chat_template_test.py renders each beside its family.
constexpr KnownTemplate kKnownTemplates[] = {
    {0xffdc0d77e41d6202, "deepseek-v2"},
    {0xf81b988f95dbdd98, "deepseek-v2.5"},
    {0x1b4a5cd19ab59f2a, "deepseek-v3"},
    {0x7537b27cb31799f3, "deepseek-v3.1"},
    {0xa54d3047ec7d1608, "deepseek-r1"},
    {0x3a45f8c9ca70b0b5, "deepseek-r1-unopened"},
    {0xc2f46d7352087099, "deepseek-r1-0528"},
    {0xba32bf1af1e18fb7, "deepseek-r1-distill"},
    {0xf1315bf8215a87dd, "deepseek-r1-distill-unopened"},
    {0x75e607b46d96e156, "fathom-tiny"},
};

}  // namespace

// Writes one conversation. Its members are the variables of the Jinja templates' namespace.
class ChatTemplate::Renderer {
 public:
  Renderer(const ChatTemplate& chat_template, const ChatOptions& options)
      : style_(*chat_template.style_),
        bos_(chat_template.bos_),
        eos_(chat_template.eos_),
        thinking_(options.thinking.value_or(false)),
        options_(options) {}

  RenderedChat Run(std::span<const ChatMessage> messages) {
    out_ = bos_;
    if (!style_.plain) System(messages);
    size_t last_begin = 0;
    for (const ChatMessage& message : messages) {
      last_begin = out_.size();
      Message(message);
    }
    if (messages.back().prefix) {
      out_.resize(out_.size() - eos_.size());  // what ends every assistant message
    } else {
      last_begin = out_.size();
      GenerationPrompt();
    }
    const std::string_view turn = std::string_view(out_).substr(last_begin);
    const size_t open = turn.rfind(kThink);
    const bool thinking_open = style_.thinking != Thinking::kNone &&
                               open != std::string_view::npos &&
                               turn.find(kEndThink, open) == std::string_view::npos;
    return {std::move(out_), thinking_open};
  }

 private:
  void Add(std::initializer_list<std::string_view> parts) {
    for (std::string_view part : parts) out_ += part;
  }

  void System(std::span<const ChatMessage> messages) {
    std::string system;
    bool first = true;
    for (const ChatMessage& message : messages) {
      if (message.role != ChatRole::kSystem) continue;
      if (style_.system == System::kLast || first) {
        system = message.content;
      } else {
        system += "\n\n" + message.content;
      }
      first = false;
    }
    out_ += system;
    if (!options_.tools.empty()) DescribeTools(!system.empty());
  }

  // As the model card of DeepSeek-V3.1 says; its template leaves this to the caller.
  void DescribeTools(bool after_system) {
    Add({after_system ? "\n\n" : "", "## Tools\nYou have access to the following tools:\n\n"});
    for (const ChatTool& tool : options_.tools) {
      Add({"### ", tool.name, "\nDescription: ", tool.description,
           "\n\nParameters: ", tool.parameters, "\n\n"});
    }
    Add({"IMPORTANT: ALWAYS adhere to this exact format for tool use:\n", kCallsBegin, kCallBegin,
         "tool_call_name", kToolSep, "tool_call_arguments", kCallEnd, "{additional_tool_calls}",
         kCallsEnd,
         "\n\nWhere:\n"
         "- `tool_call_name` must be an exact match to one of the available tools\n"
         "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
         "Schema\n"
         "- For multiple tool calls, chain them directly without separators or spaces"});
  }

  void Message(const ChatMessage& message) {
    if (style_.plain) return PlainMessage(message);
    switch (message.role) {
      case ChatRole::kSystem:
        return;  // written in front
      case ChatRole::kUser:
        is_tool_ = false;
        is_last_user_ = true;
        if (style_.tools == Tools::kR10528 || style_.tools == Tools::kV31) is_first_ = false;
        Add({kUser, message.content, style_.tools == Tools::kR10528 ? kAssistant : ""});
        return;
      case ChatRole::kAssistant:
        if (message.tool_calls.empty()) {
          Answer(message);
        } else {
          ToolCalls(message);
        }
        is_last_user_ = false;
        return;
      case ChatRole::kTool:
        ToolOutput(message);
        is_last_user_ = false;
        return;
    }
  }

  void PlainMessage(const ChatMessage& message) {
    if (message.role == ChatRole::kUser) Add({"User: ", message.content, "\n\n"});
    if (message.role == ChatRole::kSystem) Add({message.content, "\n\n"});
    if (message.role == ChatRole::kAssistant) Add({"Assistant: ", message.content, eos_});
  }

  std::string_view WithoutThinking(std::string_view content) const {
    if (style_.strip == Strip::kNothing) return content;
    const size_t end =
        style_.strip == Strip::kToLastEnd ? content.rfind(kEndThink) : content.find(kEndThink);
    return end == std::string_view::npos ? content : content.substr(end + kEndThink.size());
  }

  void Answer(const ChatMessage& message) {
    const bool resumes = !message.reasoning_content.empty() && message.prefix;
    if (style_.tools == Tools::kV31) {
      if (is_last_user_) {
        Add({kAssistant, message.prefix && thinking_ ? kThink : kEndThink});
      }
    } else if (is_tool_) {
      out_ += kOutputsEnd;
    } else if (style_.tools != Tools::kR10528) {
      out_ += kAssistant;
    }
    if (resumes) {
      if (style_.tools != Tools::kV31) Add({kThink, "\n"});
      out_ += message.reasoning_content;
      if (!message.content.empty()) {
        out_ += style_.tools == Tools::kV31 ? "</think>" : "\n</think>\n\n";
      }
      out_ += message.content;
    } else {
      // After tool outputs most templates keep an answer as it is.
      const bool whole = is_tool_ && style_.tools != Tools::kR10528;
      out_ += whole ? std::string_view(message.content) : WithoutThinking(message.content);
    }
    out_ += eos_;
    is_tool_ = false;
  }

  void Call(const ChatToolCall& call) {
    if (style_.tools == Tools::kV31) {
      Add({kCallBegin, call.name, kToolSep, call.arguments, kCallEnd});
    } else {
      Add({kCallBegin, "function", kToolSep, call.name, "\n```json\n", call.arguments, "\n```",
           kCallEnd});
    }
  }

  void ToolCalls(const ChatMessage& message) {
    std::string_view content = message.content;
    if (style_.tools == Tools::kV31) {
      if (is_last_user_) Add({kAssistant, kEndThink});
      is_first_ = false;
    } else if (style_.tools == Tools::kR10528) {
      if (is_tool_) out_ += kOutputsEnd;
      is_first_ = false;
      is_output_first_ = true;
      content = WithoutThinking(content);
    }
    is_tool_ = false;
    const bool opens_turn = style_.tools == Tools::kV25 || style_.tools == Tools::kR1;
    for (const ChatToolCall& call : message.tool_calls) {
      // is_first_: the first call has been written. Where no message resets it, only the first
      // calls of a conversation get an opening.
      if (!is_first_) {
        Add({opens_turn ? kAssistant : "", content, kCallsBegin});
        Call(call);
        is_first_ = true;
        continue;
      }
      if (style_.tools != Tools::kV31) out_ += "\n";
      Call(call);
      if (style_.tools == Tools::kV25) Add({kCallsEnd, eos_});
    }
    if (style_.tools != Tools::kV25) Add({kCallsEnd, eos_});
  }

  void ToolOutput(const ChatMessage& message) {
    is_tool_ = true;
    if (style_.tools != Tools::kV31) {
      if (is_output_first_) {
        out_ += kOutputsBegin;
      } else if (style_.newline_between_outputs) {
        out_ += "\n";
      }
      is_output_first_ = false;
    }
    Add({kOutputBegin, message.content, kOutputEnd});
  }

  void GenerationPrompt() {
    if (style_.plain) {
      out_ += "Assistant:";
      return;
    }
    switch (style_.tools) {
      case Tools::kV31:
        if (is_last_user_ && !is_tool_) Add({kAssistant, thinking_ ? kThink : kEndThink});
        return;
      case Tools::kR10528:
        if (is_tool_) {
          out_ += kOutputsEnd;
        } else if (!is_last_user_) {
          out_ += kAssistant;
        }
        return;
      case Tools::kNone:
      case Tools::kV25:
      case Tools::kR1:
        if (is_tool_) {
          out_ += kOutputsEnd;
        } else {
          Add({kAssistant, style_.thinking == Thinking::kTemplate ? "<think>\n" : ""});
        }
        return;
    }
  }

  const Style& style_;
  const std::string& bos_;
  const std::string& eos_;
  const bool thinking_;
  const ChatOptions& options_;
  std::string out_;
  bool is_first_ = false;
  bool is_tool_ = false;
  bool is_output_first_ = true;
  bool is_last_user_ = false;
};

ChatTemplate::ChatTemplate(const Style& style, std::string bos, std::string eos)
    : style_(&style), bos_(std::move(bos)), eos_(std::move(eos)) {}

uint64_t ChatTemplateHash(std::string_view source) {
  while (source.ends_with('\n') || source.ends_with('\r')) source.remove_suffix(1);
  return Hash64(source);
}

std::vector<std::string_view> ChatTemplate::Families() {
  std::vector<std::string_view> families;
  for (const Style& style : Styles()) families.push_back(style.family);
  return families;
}

Result<ChatTemplate> ChatTemplate::Select(const Tokenizer& tokenizer,
                                          std::string_view forced_family) {
  std::string_view family = forced_family;
  if (family.empty()) {
    const std::string& source = tokenizer.chat_template();
    if (source.empty()) {
      return Err(Code::kNotFound,
                 "the model has no chat template; choose a family with --chat-template: {}",
                 fmt::join(Families(), ", "));
    }
    const uint64_t hash = ChatTemplateHash(source);
    for (const KnownTemplate& known : kKnownTemplates) {
      if (known.hash == hash) family = known.family;
    }
    if (family.empty()) {
      return Err(Code::kUnsupported,
                 "the model's chat template (hash {:016x}) is unknown; choose the family that it "
                 "belongs to with --chat-template: {}",
                 hash, fmt::join(Families(), ", "));
    }
  }
  for (const Style& style : Styles()) {
    if (style.family != family) continue;
    if (!tokenizer.bos_id() || !tokenizer.eos_id()) {
      return Err(Code::kInvalidArgument,
                 "chat template {}: tokenizer_config.json must name bos_token and eos_token",
                 family);
    }
    for (std::string_view token : {kUser, kAssistant}) {
      if (!style.plain && !tokenizer.IdOf(token)) {
        return Err(Code::kInvalidArgument,
                   "chat template {} needs the token {}, which the tokenizer does not have", family,
                   token);
      }
    }
    return ChatTemplate(style, tokenizer.bos_token(), tokenizer.eos_token());
  }
  const std::string_view nearest = Nearest(family, Families());
  return Err(Code::kInvalidArgument, "unknown chat template family '{}'{}; the families are: {}",
             family, nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
             fmt::join(Families(), ", "));
}

std::string_view ChatTemplate::family() const { return style_->family; }
Thinking ChatTemplate::thinking() const { return style_->thinking; }

ToolCallFormat ChatTemplate::tool_call_format() const {
  switch (style_->tools) {
    case Tools::kNone:
      return ToolCallFormat::kNone;
    case Tools::kV31:
      return ToolCallFormat::kPlain;
    case Tools::kV25:
    case Tools::kR1:
    case Tools::kR10528:
      return ToolCallFormat::kFenced;
  }
  return ToolCallFormat::kNone;
}

Result<RenderedChat> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                          const ChatOptions& options) const {
  const auto refuse = [&](size_t i, std::string_view what) {
    return Err(Code::kInvalidArgument, "messages[{}]: {} (chat template {})", i, what, family());
  };
  if (messages.empty()) return Err(Code::kInvalidArgument, "messages: must not be empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool assistant = message.role == ChatRole::kAssistant;
    if (!assistant &&
        (message.prefix || !message.tool_calls.empty() || !message.reasoning_content.empty())) {
      return refuse(i, "prefix, tool_calls and reasoning_content belong to the assistant");
    }
    if (message.prefix && i + 1 < messages.size()) {
      return refuse(i, "only the last message may be a prefix");
    }
    if (message.prefix && !message.tool_calls.empty()) {
      return refuse(i, "a prefix cannot have tool_calls");
    }
    if (message.prefix && !message.reasoning_content.empty()) {
      if (style_->thinking == Thinking::kNone) return refuse(i, "the family does not think");
      if (style_->thinking == Thinking::kSwitch && !options.thinking.value_or(false)) {
        return refuse(i, "a prefix with reasoning_content needs thinking switched on");
      }
    }
    const bool tools = message.role == ChatRole::kTool || !message.tool_calls.empty();
    if (tools && style_->tools == Tools::kNone) return refuse(i, "the family has no tools");
    if (style_->tools == Tools::kV25 && !message.tool_calls.empty() && !message.content.empty()) {
      return refuse(i, "the template writes content or tool_calls, not both");
    }
  }
  if (options.thinking && style_->thinking != Thinking::kSwitch) {
    return Err(Code::kInvalidArgument,
               "chat template {} has no thinking switch; deepseek-v3.1 has one", family());
  }
  if (!options.tools.empty() && style_->tools != Tools::kV31) {
    return Err(Code::kUnsupported, "chat template {} does not describe tools; deepseek-v3.1 does",
               family());
  }
  if (!options.tools.empty() && options.thinking.value_or(false)) {
    return Err(Code::kUnsupported, "chat template {} calls tools with thinking off only", family());
  }
  return Renderer(*this, options).Run(messages);
}

Result<EncodedChat> EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages, const ChatOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const RenderedChat chat, chat_template.Render(messages, options));
  FATHOM_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                          tokenizer.Encode(chat.text, {.add_special_tokens = false}));
  return EncodedChat{std::move(ids), chat.thinking_open};
}

}  // namespace fathom::text
