#pragma once
// Text in, text out, over one engine: what `fathom run`, the server and the C ABI share. A session
// renders and tokenises prompts on the caller's thread, submits them, and turns the tokens that
// come back into deltas of text: whole UTF-8 characters, stop strings removed, reasoning and tool
// calls split off.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace fathom::session {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object as text
};

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };
std::string_view NameOf(ChatRole role);                           // "system", ...
std::optional<ChatRole> ChatRoleFromName(std::string_view name);  // "developer" means system

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::string reasoning_content;     // assistant; templates drop it from the history
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  // Last message, assistant: the answer goes on from this content instead of starting anew.
  bool prefix = false;
};

struct ToolDefinition {
  std::string name;
  std::string description;
  std::string parameters;  // a JSON schema as text
};

inline constexpr int32_t kMaxChoices = 128;

// What completions and chats have in common.
struct GenerationParams {
  // Events, Cancel and the ledger name choice k by id + k: the caller keeps n consecutive ids free.
  engine::RequestId id = 0;
  int32_t n =
      1;  // choices, at most kMaxChoices; they share the prompt's pages. Choice k uses seed + k
  engine::SamplingParams sampling;
  // Absent: as many as the context holds after the prompt. A prompt and max_tokens that exceed the
  // context together are an error that states the three numbers.
  std::optional<int32_t> max_tokens;
  // None empty; the content ends before the first that appears. Thinking is not searched.
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;  // the model's own end tokens do not end the text
  int32_t priority = 0;
  int64_t deadline_ns = 0;  // monotonic; 0: none
  std::string tenant;       // salts the prefix cache
};

struct CompletionParams : GenerationParams {
  std::variant<std::string, std::vector<int32_t>>
      prompt;  // a text gets the model's BOS, ids do not
};

struct ChatParams : GenerationParams {
  std::vector<ChatMessage> messages;
  std::vector<ToolDefinition> tools;
  // For templates with a switch (V3.1): absent is the template's default; an error for others.
  std::optional<bool> thinking;
};

struct TokenText {
  int32_t token = 0;
  std::string bytes;  // may be part of a character
  float logprob = 0;  // of the model's distribution, before temperature and filters
};

struct TokenLogprob : TokenText {
  std::vector<TokenText> top;  // most likely first
};

struct ToolCallDelta {
  int32_t index = 0;
  std::string id;         // with the first delta of a call
  std::string name;       // with the first delta of a call
  std::string arguments;  // to be appended
};

// What became certain since the last delta. Text that may still turn out to be a stop string, a tag
// or half a character is held back.
struct TextDelta {
  std::string content;
  std::string reasoning_content;
  std::vector<ToolCallDelta> tool_calls;
  std::vector<TokenLogprob> logprobs;  // of the tokens that arrived, when asked for
  int32_t num_tokens = 0;              // that arrived
};

struct Finish {
  engine::FinishReason reason = engine::FinishReason::kStop;
  bool called_tools = false;     // kStop with at least one whole tool call
  std::string stop_text;         // the stop string that ended it; empty: none did
  engine::Usage usage;           // of this choice
  int32_t reasoning_tokens = 0;  // of usage.generated_tokens
  const Error* error = nullptr;  // kError; valid during the call
};

// Called on the engine's thread, for one choice after the other; must not block.
class TextListener {
 public:
  virtual ~TextListener() = default;
  virtual void OnDelta(int32_t choice, const TextDelta& delta) = 0;
  // Once a choice, after its last delta.
  virtual void OnFinish(int32_t choice, const Finish& finish) = 0;
};

struct ModelInfo {
  std::string name;
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;  // prompt and answer; the pool may hold less than the model could
  std::string template_family;     // empty: the model has no chat template
  std::vector<int32_t> end_tokens;
  // generation_config.json's, for what a request leaves open.
  engine::SamplingParams default_sampling;
};

class Session {
 public:
  virtual ~Session() = default;

  virtual const ModelInfo& model() const = 0;

  // Any thread, all of them. Once a call returned an error, the listener is never called.
  virtual Status Complete(CompletionParams params, std::shared_ptr<TextListener> listener) = 0;
  virtual Status Chat(ChatParams params, std::shared_ptr<TextListener> listener) = 0;
  // Ends one choice with kCancelled; one that has ended already is ignored.
  virtual void Cancel(engine::RequestId id) = 0;

  virtual Result<std::vector<int32_t>> Tokenize(std::string_view text, bool add_bos) const = 0;
  virtual Result<std::vector<int32_t>> TokenizeChat(const ChatParams& params) const = 0;
  // Invalid UTF-8 becomes U+FFFD; an id outside the vocabulary is an error.
  virtual Result<std::string> Detokenize(std::span<const int32_t> tokens) const = 0;
  // The bytes of one token, special tokens by name.
  virtual std::string TokenBytes(int32_t token) const = 0;

  virtual engine::EngineStats stats() const = 0;
  virtual void Drain(int64_t deadline_ns) = 0;  // see Engine::Drain
};

}  // namespace fathom::session
