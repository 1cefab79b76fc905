#include "session/session.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "engine/fake_model.h"
#include "kernels/cpu/select.h"
#include "session/text_session.h"
#include "text/test_tokenizer.h"

namespace fathom::session {
namespace {

// An engine that answers each request with the same tokens, at once.
class ScriptedEngine final : public engine::Engine {
 public:
  Status SubmitAll(std::vector<Submission> submissions) override {
    if (refuse) return Err(Code::kResourceExhausted, "the queue is full");
    for (Submission& submission : submissions) {
      const engine::RequestSpec& spec = submission.spec;
      specs.push_back(spec);
      engine::FinishReason reason = engine::FinishReason::kLength;
      int32_t generated = 0;
      for (const int32_t token : script) {
        const engine::TokenOutput output{.token = token, .top = {}};
        ++generated;
        const bool more = submission.listener->OnTokens({&output, 1});
        const auto& stops = spec.stop_tokens;
        if (!more || std::find(stops.begin(), stops.end(), token) != stops.end()) {
          reason = engine::FinishReason::kStop;
          break;
        }
        if (generated == spec.max_tokens) break;
      }
      const auto prompt = static_cast<int32_t>(spec.prompt.size());
      submission.listener->OnFinish(
          reason, {.prompt_tokens = prompt, .generated_tokens = generated}, nullptr);
    }
    return {};
  }
  void Cancel(engine::RequestId id) override { cancelled.push_back(id); }
  engine::EngineStats stats() const override { return {}; }
  int32_t max_context_tokens() const override { return 100; }
  void Drain(int64_t) override {}

  bool refuse = false;
  std::vector<int32_t> script;
  std::vector<engine::RequestSpec> specs;
  std::vector<engine::RequestId> cancelled;
};

class Collector final : public TextListener {
 public:
  struct Choice {
    std::string content, reasoning;
    std::optional<Finish> finish;
    int32_t tokens = 0;
  };
  void OnDelta(int32_t choice, const TextDelta& delta) override {
    const std::lock_guard lock(mutex);
    EXPECT_FALSE(choices[choice].finish);
    choices[choice].content += delta.content;
    choices[choice].reasoning += delta.reasoning_content;
    choices[choice].tokens += delta.num_tokens;
  }
  void OnFinish(int32_t choice, const Finish& finish) override {
    const std::lock_guard lock(mutex);
    choices[choice].finish = finish;
    ended.notify_all();
  }
  void Wait(size_t n) {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] {
      size_t finished = 0;
      for (const auto& [choice, state] : choices) finished += state.finish.has_value();
      return finished == n;
    });
  }

  std::map<int32_t, Choice> choices;
  std::mutex mutex;
  std::condition_variable ended;
};

class SessionTest : public testing::Test {
 protected:
  std::unique_ptr<Session> Make(engine::Engine& engine, std::string_view family,
                                event::Sink sink = {}) {
    text::Tokenizer tokenizer = text::TestTokenizer();
    auto chat_template = text::ChatTemplate::Select(tokenizer, family);
    ModelInfo info{.name = "test",
                   .vocab_size = tokenizer.vocab_size(),
                   .max_context_tokens = engine.max_context_tokens(),
                   .template_family = std::string(family),
                   .end_tokens = {*tokenizer.eos_id()}};
    return MakeSession(engine, {.model = std::move(info),
                                .tokenizer = std::move(tokenizer),
                                .chat_template = std::move(chat_template),
                                .sink = sink});
  }
  static std::vector<int32_t> Encode(std::string_view text) {
    return text::TestTokenizer().Encode(text, {.add_special_tokens = false}).value();
  }
};

TEST(ChatRole, NamesRoundTripAndDeveloperIsSystem) {
  for (const ChatRole role :
       {ChatRole::kSystem, ChatRole::kUser, ChatRole::kAssistant, ChatRole::kTool}) {
    EXPECT_EQ(ChatRoleFromName(NameOf(role)), role);
  }
  EXPECT_EQ(ChatRoleFromName("developer"), ChatRole::kSystem);
  EXPECT_EQ(ChatRoleFromName("User"), std::nullopt);
}

TEST_F(SessionTest, ACompletionStreamsTextAndEndsAtTheModelsEnd) {
  ScriptedEngine engine;
  engine.script = Encode("hello 中<｜end▁of▁sentence｜>never");
  event::Ring ring(64);
  const auto session = Make(engine, "deepseek-r1", event::Sink(&ring));
  const auto client = std::make_shared<Collector>();
  ASSERT_TRUE(session->Complete({{.id = 5}, "abc"}, client));
  const Collector::Choice& choice = client->choices.at(0);
  EXPECT_EQ(choice.content, "hello 中");
  ASSERT_TRUE(choice.finish);
  EXPECT_EQ(choice.finish->reason, engine::FinishReason::kStop);
  EXPECT_EQ(choice.finish->usage.prompt_tokens, 2);  // BOS and "abc"
  EXPECT_EQ(choice.finish->usage.generated_tokens, choice.tokens);
  EXPECT_EQ(engine.specs[0].max_tokens, 98);  // what the context leaves

  std::vector<event::Event> events(64);
  events.resize(ring.Drain(events));
  EXPECT_EQ(events.front().kind, event::Kind::kTokenize);
  EXPECT_EQ(events.front().value, 2u);
  uint64_t detokenized = 0;
  for (const event::Event& e : events) {
    EXPECT_EQ(e.request_id, 5u);
    if (e.kind == event::Kind::kDetokenize) detokenized += e.value;
  }
  EXPECT_EQ(detokenized, static_cast<uint64_t>(choice.tokens));
}

TEST_F(SessionTest, StopStringsEndARequestInTheEngine) {
  ScriptedEngine engine;
  engine.script = Encode("one STOP two");
  const auto session = Make(engine, "deepseek-r1");
  const auto client = std::make_shared<Collector>();
  ASSERT_TRUE(session->Complete({{.stop = {"STOP"}}, "x"}, client));
  const Collector::Choice& choice = client->choices.at(0);
  EXPECT_EQ(choice.content, "one ");
  EXPECT_EQ(choice.finish->reason, engine::FinishReason::kStop);
  EXPECT_EQ(choice.finish->stop_text, "STOP");
  EXPECT_LT(choice.tokens, static_cast<int32_t>(engine.script.size()));
}

TEST_F(SessionTest, AChatSplitsThinkingThatTheTemplateOpened) {
  ScriptedEngine engine;
  engine.script = Encode("hm\n</think>\n\nyes<｜end▁of▁sentence｜>");
  const auto session = Make(engine, "deepseek-r1");
  const auto client = std::make_shared<Collector>();
  ChatParams params;
  params.messages = {{.content = "hi"},
                     {.role = ChatRole::kAssistant, .content = "ho", .reasoning_content = "h"},
                     {.content = "so?"}};
  ASSERT_TRUE(session->Chat(params, client));
  EXPECT_EQ(client->choices.at(0).reasoning, "hm");
  EXPECT_EQ(client->choices.at(0).content, "yes");
  EXPECT_GT(client->choices.at(0).finish->reasoning_tokens, 0);
  EXPECT_TRUE(engine.specs[0].stripped_thinking);
  const auto tokens = session->TokenizeChat(params);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(*tokens, engine.specs[0].prompt);
  const int32_t bos = *text::TestTokenizer().bos_id();
  EXPECT_EQ(std::count(tokens->begin(), tokens->end(), bos), 1);
}

TEST_F(SessionTest, ChoicesHaveConsecutiveIdsAndSeeds) {
  ScriptedEngine engine;
  engine.script = Encode("abc");
  const auto session = Make(engine, "deepseek-r1");
  const auto client = std::make_shared<Collector>();
  CompletionParams params{{.id = 70, .n = 3}, "x"};
  params.sampling.seed = 9;
  ASSERT_TRUE(session->Complete(params, client));
  ASSERT_EQ(engine.specs.size(), 3u);
  for (uint64_t k = 0; k < 3; ++k) {
    EXPECT_EQ(engine.specs[k].id, 70 + k);
    EXPECT_EQ(engine.specs[k].sampling.seed, 9 + k);
    EXPECT_TRUE(client->choices.at(static_cast<int32_t>(k)).finish);
  }
  session->Cancel(71);
  EXPECT_EQ(engine.cancelled, std::vector<engine::RequestId>{71});
}

TEST_F(SessionTest, ErrorsStateTheNumbersAndNeverReachTheListener) {
  ScriptedEngine engine;
  engine.script = Encode("abc");
  const auto session = Make(engine, "deepseek-r1");
  const auto client = std::make_shared<Collector>();
  const auto message = [&](CompletionParams params) {
    const Status status = session->Complete(std::move(params), client);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message({{.max_tokens = 99}, "abc"}),
            "the prompt has 2 tokens and max_tokens is 99: together 101, but the context holds "
            "100; max_tokens can be at most 98");
  EXPECT_EQ(message({{}, std::string(300, '!')}),
            "the prompt has 301 tokens and leaves no room for an answer in a context of 100");
  EXPECT_EQ(message({{.stop = {""}}, "abc"}), "a stop string is empty");
  EXPECT_EQ(message({{.n = 0}, "abc"}), "n is 0, expected 1 to 128");
  engine.refuse = true;
  EXPECT_EQ(message({{}, "abc"}), "the queue is full");
  EXPECT_TRUE(client->choices.empty());
  EXPECT_EQ(session->Detokenize(std::vector<int32_t>{9999}).error().code, Code::kInvalidArgument);
}

TEST_F(SessionTest, AModelWithoutATemplateCompletesButDoesNotChat) {
  ScriptedEngine engine;
  engine.script = Encode("abc");
  const auto session = Make(engine, "");
  const auto client = std::make_shared<Collector>();
  const Status chat = session->Chat({{}, {{.content = "hi"}}, {}, {}}, client);
  ASSERT_FALSE(chat);
  EXPECT_NE(chat.error().message.find("template"), std::string::npos) << chat.error().message;
  EXPECT_TRUE(session->Complete({{}, "abc"}, client));
}

// Over the real engine: choices with one prompt share its pages, and a seed decides the text.
TEST_F(SessionTest, OverARealEngineASeedDecidesTheText) {
  const int32_t vocab = text::TestTokenizer().vocab_size();
  engine::FakeModel model(16, 600, 1, vocab);
  const auto device = ops::MakeCpuDevice();
  ThreadPool pool(1);
  ops::Comm comm;
  std::unique_ptr<Session> session;
  auto engine =
      engine::Engine::Create(model, {.max_running = 8, .token_budget = 64, .num_pages = 64},
                             {*device, pool, **kernels::cpu::Select(""), comm, {}});
  ASSERT_TRUE(engine) << engine.error().message;
  session = Make(**engine, "deepseek-r1");
  const auto run = [&](engine::RequestId id) {
    const auto client = std::make_shared<Collector>();
    CompletionParams params{{.id = id, .n = 4, .max_tokens = 40}, std::string(200, 'x')};
    params.sampling.seed = 5;
    EXPECT_TRUE(session->Complete(params, client));
    client->Wait(4);
    return client;
  };
  const auto first = run(1);
  const auto second = run(100);
  std::map<std::string, int> texts;
  for (int32_t k = 0; k < 4; ++k) {
    EXPECT_EQ(first->choices.at(k).content, second->choices.at(k).content);
    EXPECT_EQ(second->choices.at(k).finish->usage.cached_prompt_tokens, 192);
    ++texts[first->choices.at(k).content];
  }
  EXPECT_EQ(texts.size(), 4u);
  engine->reset();
}

}  // namespace
}  // namespace fathom::session
