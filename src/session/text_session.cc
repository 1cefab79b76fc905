#include "session/text_session.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "session/choice_stream.h"

namespace fathom::session {
namespace {

// The tags of tool calls: control tokens that the parser must see as text.
constexpr std::string_view kVisibleTags[] = {"<think>",
                                             "</think>",
                                             "<｜tool▁calls▁begin｜>",
                                             "<｜tool▁call▁begin｜>",
                                             "<｜tool▁sep｜>",
                                             "<｜tool▁call▁end｜>",
                                             "<｜tool▁calls▁end｜>"};

text::ChatRole RoleOf(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return text::ChatRole::kSystem;
    case ChatRole::kUser:
      return text::ChatRole::kUser;
    case ChatRole::kAssistant:
      return text::ChatRole::kAssistant;
    case ChatRole::kTool:
      return text::ChatRole::kTool;
  }
  return text::ChatRole::kUser;
}

// Turns one choice's tokens into deltas for the client's listener.
class ChoiceListener final : public engine::RequestListener {
 public:
  ChoiceListener(const text::Tokenizer& tokenizer, StreamOptions options, int32_t choice,
                 std::shared_ptr<TextListener> client, event::Sink sink)
      : id_(options.id),
        stream_(tokenizer, std::move(options)),
        choice_(choice),
        client_(std::move(client)),
        sink_(sink) {}

  bool OnTokens(std::span<const engine::TokenOutput> tokens) override {
    const int64_t start_ns = sink_.enabled() ? NowNs() : 0;
    client_->OnDelta(choice_, stream_.Push(tokens));
    EmitDetokenize(start_ns, tokens.size());
    return !stream_.stopped();
  }

  void OnFinish(engine::FinishReason reason, const engine::Usage& usage,
                const Error* error) override {
    const int64_t start_ns = sink_.enabled() ? NowNs() : 0;
    const TextDelta rest = stream_.Flush();
    if (!rest.content.empty() || !rest.reasoning_content.empty() || !rest.tool_calls.empty()) {
      client_->OnDelta(choice_, rest);
    }
    EmitDetokenize(start_ns, 0);
    client_->OnFinish(
        choice_, {.reason = stream_.stopped() ? engine::FinishReason::kStop : reason,
                  .called_tools = reason == engine::FinishReason::kStop && stream_.called_tools(),
                  .stop_text = stream_.stop_text(),
                  .usage = usage,
                  .reasoning_tokens = stream_.reasoning_tokens(),
                  .error = error});
  }

 private:
  // Handing the text on is part of the span: both keep the engine's thread.
  void EmitDetokenize(int64_t start_ns, size_t tokens) const {
    if (!sink_.enabled()) return;
    event::Event event;
    event.kind = event::Kind::kDetokenize;
    event.request_id = id_;
    event.start_ns = start_ns;
    event.duration_ns = NowNs() - start_ns;
    event.value = tokens;
    sink_.Emit(event);
  }

  engine::RequestId id_;
  ChoiceStream stream_;
  int32_t choice_;
  std::shared_ptr<TextListener> client_;
  event::Sink sink_;
};

class TextSession final : public Session {
 public:
  TextSession(engine::Engine& engine, SessionParts parts)
      : engine_(engine), parts_(std::move(parts)) {
    for (const std::string_view tag : kVisibleTags) {
      if (const auto id = parts_.tokenizer.IdOf(tag)) visible_tags_.push_back(*id);
    }
  }

  const ModelInfo& model() const override { return parts_.model; }

  Status Complete(CompletionParams params, std::shared_ptr<TextListener> listener) override {
    const int64_t start_ns = NowNs();
    if (const auto* text = std::get_if<std::string>(&params.prompt)) {
      FATHOM_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, Tokenize(*text, /*add_bos=*/true));
      EmitTokenize(params.id, start_ns, prompt.size());
      return Start(params, std::move(prompt), {}, false, std::move(listener));
    }
    auto prompt = std::get<std::vector<int32_t>>(std::move(params.prompt));
    return Start(params, std::move(prompt), {}, false, std::move(listener));
  }

  Status Chat(ChatParams params, std::shared_ptr<TextListener> listener) override {
    const int64_t start_ns = NowNs();
    FATHOM_ASSIGN_OR_RETURN(text::EncodedChat chat, Encode(params));
    EmitTokenize(params.id, start_ns, chat.ids.size());
    const text::ChatTemplate& chat_template = *parts_.chat_template;
    StreamOptions options;
    options.tool_calls = chat_template.tool_call_format();
    options.visible_special = visible_tags_;
    if (chat.thinking_open) {
      options.reasoning = text::ReasoningSplitter::Start::kThinking;
    } else if (chat_template.thinking() == text::Thinking::kByModel &&
               !params.messages.back().prefix) {
      options.reasoning = text::ReasoningSplitter::Start::kMayThink;
    }
    const bool stripped = std::ranges::any_of(params.messages, [](const ChatMessage& message) {
      return message.role == ChatRole::kAssistant && !message.prefix &&
             (!message.reasoning_content.empty() ||
              message.content.find("</think>") != std::string::npos);
    });
    return Start(params, std::move(chat.ids), std::move(options), stripped, std::move(listener));
  }

  void Cancel(engine::RequestId id) override { engine_.Cancel(id); }

  Result<std::vector<int32_t>> Tokenize(std::string_view text, bool add_bos) const override {
    return parts_.tokenizer.Encode(text, {.add_special_tokens = add_bos});
  }

  Result<std::vector<int32_t>> TokenizeChat(const ChatParams& params) const override {
    FATHOM_ASSIGN_OR_RETURN(text::EncodedChat chat, Encode(params));
    return std::move(chat.ids);
  }

  Result<std::string> Detokenize(std::span<const int32_t> tokens) const override {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= parts_.model.vocab_size) {
        return Err(Code::kInvalidArgument, "token {} is not in the vocabulary, which has 0 to {}",
                   token, parts_.model.vocab_size - 1);
      }
    }
    return parts_.tokenizer.Decode(tokens, {.skip_special_tokens = false});
  }

  std::string TokenBytes(int32_t token) const override {
    return std::string(parts_.tokenizer.TokenBytes(token));
  }

  engine::EngineStats stats() const override { return engine_.stats(); }
  void Drain(int64_t deadline_ns) override { engine_.Drain(deadline_ns); }

 private:
  Result<text::EncodedChat> Encode(const ChatParams& params) const {
    if (!parts_.chat_template) return tl::unexpected(parts_.chat_template.error());
    std::vector<text::ChatMessage> messages;
    messages.reserve(params.messages.size());
    for (const ChatMessage& message : params.messages) {
      text::ChatMessage& out = messages.emplace_back();
      out.role = RoleOf(message.role);
      out.content = message.content;
      out.reasoning_content = message.reasoning_content;
      out.prefix = message.prefix;
      for (const ToolCall& call : message.tool_calls) {
        out.tool_calls.push_back({.name = call.name, .arguments = call.arguments});
      }
    }
    text::ChatOptions options{.thinking = params.thinking, .tools = {}};
    for (const ToolDefinition& tool : params.tools) {
      options.tools.push_back(
          {.name = tool.name, .description = tool.description, .parameters = tool.parameters});
    }
    return text::EncodeChat(*parts_.chat_template, parts_.tokenizer, messages, options);
  }

  // The answer's length that the client asked for, or what the context leaves.
  Result<int32_t> MaxTokens(const GenerationParams& params, size_t prompt_tokens) const {
    const auto prompt = static_cast<int64_t>(prompt_tokens);
    const int64_t context = parts_.model.max_context_tokens;
    if (prompt >= context) {
      return Err(Code::kOutOfRange,
                 "the prompt has {} tokens and leaves no room for an answer in a context of {}",
                 prompt, context);
    }
    const int64_t wanted = params.max_tokens.value_or(static_cast<int32_t>(context - prompt));
    if (prompt + wanted > context) {
      return Err(Code::kOutOfRange,
                 "the prompt has {} tokens and max_tokens is {}: together {}, but the context "
                 "holds {}; max_tokens can be at most {}",
                 prompt, wanted, prompt + wanted, context, context - prompt);
    }
    return static_cast<int32_t>(wanted);
  }

  Status Start(const GenerationParams& params, std::vector<int32_t> prompt, StreamOptions options,
               bool stripped_thinking, std::shared_ptr<TextListener> client) {
    if (params.n < 1 || params.n > kMaxChoices) {
      return Err(Code::kInvalidArgument, "n is {}, expected 1 to {}", params.n, kMaxChoices);
    }
    if (std::ranges::any_of(params.stop, &std::string::empty)) {
      return Err(Code::kInvalidArgument, "a stop string is empty");
    }
    FATHOM_ASSIGN_OR_RETURN(const int32_t max_tokens, MaxTokens(params, prompt.size()));
    engine::RequestSpec spec{.id = params.id,
                             .prompt = std::move(prompt),
                             .sampling = params.sampling,
                             .max_tokens = max_tokens,
                             .stop_tokens = params.stop_token_ids,
                             .priority = params.priority,
                             .deadline_ns = params.deadline_ns,
                             .tenant = params.tenant,
                             .stripped_thinking = stripped_thinking,
                             .constraint = nullptr};
    if (!params.ignore_eos) {
      const std::vector<int32_t>& ends = parts_.model.end_tokens;
      spec.stop_tokens.insert(spec.stop_tokens.end(), ends.begin(), ends.end());
    }
    options.stop = params.stop;
    options.stop_tokens = spec.stop_tokens;
    options.logprobs = params.sampling.top_logprobs >= 0;

    std::vector<engine::Engine::Submission> submissions;
    for (int32_t choice = 0; choice < params.n; ++choice) {
      engine::Engine::Submission& submission = submissions.emplace_back();
      submission.spec = spec;
      submission.spec.id = options.id = params.id + static_cast<engine::RequestId>(choice);
      if (spec.sampling.seed) {
        submission.spec.sampling.seed = *spec.sampling.seed + static_cast<uint64_t>(choice);
      }
      submission.listener =
          std::make_shared<ChoiceListener>(parts_.tokenizer, options, choice, client, parts_.sink);
    }
    return engine_.SubmitAll(std::move(submissions));
  }

  void EmitTokenize(engine::RequestId id, int64_t start_ns, size_t tokens) const {
    if (!parts_.sink.enabled()) return;
    event::Event event;
    event.kind = event::Kind::kTokenize;
    event.request_id = id;
    event.start_ns = start_ns;
    event.duration_ns = NowNs() - start_ns;
    event.value = tokens;
    parts_.sink.Emit(event);
  }

  engine::Engine& engine_;
  SessionParts parts_;
  std::vector<int32_t> visible_tags_;
};

}  // namespace

std::unique_ptr<Session> MakeSession(engine::Engine& engine, SessionParts parts) {
  return std::make_unique<TextSession>(engine, std::move(parts));
}

}  // namespace fathom::session
