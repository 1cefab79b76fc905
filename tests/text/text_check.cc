// The text layer for the differential tests, over pipes.
//   text_check tokenize TOKENIZER_JSON [TOKENIZER_CONFIG]
// reads frames (flags: u8, bit 0 add_special_tokens, bit 1 parse_special; size: u32; text) and
// answers each with (count: u32; ids: i32[]; size: u32; the text of those ids).
//   text_check chat TOKENIZER_JSON TOKENIZER_CONFIG
// reads one JSON object a line {"family", "messages", "thinking", "tools"} (OpenAI's shapes; all
// but messages may be missing) and answers each with {"family", "text", "thinking_open", "ids"} or
// {"error"}.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom::text {
namespace {

bool Read(void* data, size_t size) { return std::fread(data, 1, size, stdin) == size; }

template <class T>
void Write(const T* data, size_t count) {
  const auto size = static_cast<uint32_t>(count);
  std::fwrite(&size, sizeof(size), 1, stdout);
  std::fwrite(data, sizeof(T), count, stdout);
}

int Fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  return 2;
}

int Tokenize(const std::string& json, const std::string& config) {
  const auto tokenizer = Tokenizer::Load(json, config);
  if (!tokenizer) return Fail(tokenizer.error());
  uint8_t flags = 0;
  uint32_t size = 0;
  while (Read(&flags, 1) && Read(&size, sizeof(size))) {
    std::string text(size, '\0');
    if (!Read(text.data(), size)) return 2;
    const auto ids = tokenizer->Encode(
        text, {.add_special_tokens = (flags & 1) != 0, .parse_special = (flags & 2) != 0});
    if (!ids) return Fail(ids.error());
    const std::string decoded = tokenizer->Decode(*ids, {.skip_special_tokens = false});
    Write(ids->data(), ids->size());
    Write(decoded.data(), decoded.size());
    std::fflush(stdout);
  }
  return 0;
}

using Json = nlohmann::json;

ChatMessage ReadMessage(const Json& json) {
  ChatMessage message;
  const std::string role = json.at("role");
  message.role = role == "system"      ? ChatRole::kSystem
                 : role == "user"      ? ChatRole::kUser
                 : role == "assistant" ? ChatRole::kAssistant
                                       : ChatRole::kTool;
  if (json.contains("content") && !json["content"].is_null()) message.content = json["content"];
  message.reasoning_content = json.value("reasoning_content", "");
  message.prefix = json.value("prefix", false);
  for (const Json& call : json.value("tool_calls", Json::array())) {
    message.tool_calls.push_back({call.at("function").at("name"), call["function"]["arguments"]});
  }
  return message;
}

Result<Json> Chat(const Tokenizer& tokenizer, const Json& request) {
  std::vector<ChatMessage> messages;
  for (const Json& message : request.at("messages")) messages.push_back(ReadMessage(message));
  ChatOptions options;
  if (request.contains("thinking")) options.thinking = request["thinking"].get<bool>();
  for (const Json& tool : request.value("tools", Json::array())) {
    options.tools.push_back({tool.at("name"), tool.at("description"), tool.at("parameters")});
  }
  FATHOM_ASSIGN_OR_RETURN(const ChatTemplate chat_template,
                          ChatTemplate::Select(tokenizer, request.value("family", "")));
  FATHOM_ASSIGN_OR_RETURN(const RenderedChat chat, chat_template.Render(messages, options));
  FATHOM_ASSIGN_OR_RETURN(const EncodedChat encoded,
                          EncodeChat(chat_template, tokenizer, messages, options));
  return Json{{"family", chat_template.family()},
              {"text", chat.text},
              {"thinking_open", chat.thinking_open},
              {"ids", encoded.ids}};
}

int Chats(const std::string& json, const std::string& config) {
  const auto tokenizer = Tokenizer::Load(json, config);
  if (!tokenizer) return Fail(tokenizer.error());
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = Chat(*tokenizer, Json::parse(line));
    std::cout << (answer ? *answer : Json{{"error", answer.error().message}}) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace fathom::text

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() >= 2 && args.size() <= 3 && args[0] == "tokenize") {
    return fathom::text::Tokenize(args[1], args.size() > 2 ? args[2] : "");
  }
  if (args.size() == 3 && args[0] == "chat") return fathom::text::Chats(args[1], args[2]);
  std::fprintf(stderr,
               "usage: text_check tokenize TOKENIZER_JSON [TOKENIZER_CONFIG]\n"
               "       text_check chat TOKENIZER_JSON TOKENIZER_CONFIG\n");
  return 2;
}
