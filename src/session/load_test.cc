// The shipped models, from their directory to text.
#include "session/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace fathom::session {
namespace {

class Answer final : public TextListener {
 public:
  void OnDelta(int32_t, const TextDelta& delta) override {
    const std::lock_guard lock(mutex_);
    content += delta.content;
    reasoning += delta.reasoning_content;
    for (const TokenLogprob& token : delta.logprobs) logprob_sum += token.logprob;
  }
  void OnFinish(int32_t, const Finish& end) override {
    const std::lock_guard lock(mutex_);
    finish = end;
    done_ = true;
    ended_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
  }

  std::string content, reasoning;
  double logprob_sum = 0;
  Finish finish;

 private:
  bool done_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
};

std::string ModelDirectory(std::string_view name) {
  return std::string(FATHOM_SOURCE_DIR "/models/") + std::string(name);
}

LoadOptions SmallOptions() {
  LoadOptions options;
  options.num_threads = 2;
  options.engine.max_running = 8;
  options.engine.token_budget = 128;
  options.engine.max_context_tokens = 1024;
  return options;
}

std::string Complete(Session& session, engine::RequestId id, std::string prompt,
                     int32_t max_tokens) {
  const auto answer = std::make_shared<Answer>();
  CompletionParams params{{.id = id, .max_tokens = max_tokens}, std::move(prompt)};
  params.sampling.temperature = 0;
  const Status status = session.Complete(std::move(params), answer);
  EXPECT_TRUE(status) << status.error().message;
  if (status) answer->Wait();
  EXPECT_NE(answer->finish.reason, engine::FinishReason::kError);
  return answer->content;
}

class ShippedModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ShippedModel, testing::Values("tiny-deepseek", "tiny-distill"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ShippedModel, CompletesTheSameTextAloneInABatchAndWithAWarmCache) {
  auto loaded = LoadSession(ModelDirectory(GetParam()), SmallOptions());
  ASSERT_TRUE(loaded) << loaded.error().message;
  Session& session = (*loaded)->session();
  EXPECT_EQ(session.model().name, GetParam());
  EXPECT_EQ(session.model().max_context_tokens, 1024);

  std::string prompt;
  for (int i = 0; i < 8; ++i) prompt += "The old man went down to the sea, and the sea was dark. ";
  const std::string cold = Complete(session, 1, prompt, 24);
  EXPECT_FALSE(cold.empty());
  EXPECT_EQ(Complete(session, 2, prompt, 24), cold);
  EXPECT_GT(session.stats().prefix_hits_tokens, 0u);

  std::vector<std::shared_ptr<Answer>> answers;
  for (engine::RequestId id = 10; id < 16; ++id) {
    const auto answer = answers.emplace_back(std::make_shared<Answer>());
    CompletionParams params{{.id = id, .max_tokens = 24}, prompt};
    params.sampling.temperature = 0;
    if (id % 2 == 1) params.prompt = prompt.substr(10 * (id - 9));
    ASSERT_TRUE(session.Complete(std::move(params), answer));
  }
  for (const auto& answer : answers) answer->Wait();
  EXPECT_EQ(answers[0]->content, cold);
  EXPECT_EQ(answers[4]->content, cold);
}

// Pages for two of the six answers: the others are preempted and computed again. The sum of their
// log-probabilities is the same to the last bit as that of each one alone.
TEST_P(ShippedModel, PreemptionDoesNotChangeABit) {
  const auto answers_of = [](Session& session, bool together) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (engine::RequestId id = 1; id <= 6; ++id) {
      const auto answer = answers.emplace_back(std::make_shared<Answer>());
      std::string prompt = "Chapter " + std::to_string(id * 7) + ". It was late in the year, ";
      for (uint64_t i = 0; i < id; ++i) prompt += "and the ships had not come home yet, ";
      CompletionParams params{{.id = id, .max_tokens = 70, .ignore_eos = true}, prompt};
      params.sampling.seed = id;
      params.sampling.top_logprobs = 0;
      const Status status = session.Complete(std::move(params), answer);
      EXPECT_TRUE(status) << status.error().message;
      if (!together) answer->Wait();
    }
    for (const auto& answer : answers) answer->Wait();
    return answers;
  };
  LoadOptions options = SmallOptions();
  options.model.page_tokens = 16;
  auto roomy = LoadSession(ModelDirectory(GetParam()), options);
  ASSERT_TRUE(roomy) << roomy.error().message;
  const auto alone = answers_of((*roomy)->session(), false);
  EXPECT_EQ((*roomy)->session().stats().preemptions, 0u);
  roomy->reset();

  options.engine.num_pages = 24;
  options.engine.max_context_tokens = 384;
  auto tight = LoadSession(ModelDirectory(GetParam()), options);
  ASSERT_TRUE(tight) << tight.error().message;
  const auto together = answers_of((*tight)->session(), true);
  EXPECT_GT((*tight)->session().stats().preemptions, 0u);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i]->content, alone[i]->content);
    EXPECT_EQ(together[i]->logprob_sum, alone[i]->logprob_sum) << i;
    EXPECT_LT(alone[i]->logprob_sum, 0);
  }
}

TEST_P(ShippedModel, ChatsAndEnds) {
  auto loaded = LoadSession(ModelDirectory(GetParam()), SmallOptions());
  ASSERT_TRUE(loaded) << loaded.error().message;
  Session& session = (*loaded)->session();
  EXPECT_EQ(session.model().template_family, "fathom-tiny");
  const auto answer = std::make_shared<Answer>();
  ChatParams params{{.id = 1, .max_tokens = 40}, {{.content = "Tell me about the sea."}}, {}, {}};
  params.sampling = session.model().default_sampling;
  params.sampling.seed = 1;
  const Status status = session.Chat(params, answer);
  ASSERT_TRUE(status) << status.error().message;
  answer->Wait();
  EXPECT_FALSE(answer->content.empty() && answer->reasoning.empty());
  EXPECT_GT(answer->finish.usage.generated_tokens, 0);
}

TEST(LoadSession, ErrorsNameWhatIsMissing) {
  const auto missing = LoadSession("/nowhere/model", SmallOptions());
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/nowhere/model"), std::string::npos);

  LoadOptions options = SmallOptions();
  options.device = "cuda";
  EXPECT_FALSE(LoadSession(ModelDirectory("tiny-distill"), options));
  options = SmallOptions();
  options.cpu_isa = "pentium";
  EXPECT_NE(LoadSession(ModelDirectory("tiny-distill"), options).error().message.find("pentium"),
            std::string::npos);
  options = SmallOptions();
  options.chat_template = "nothing";
  EXPECT_NE(LoadSession(ModelDirectory("tiny-distill"), options).error().message.find("nothing"),
            std::string::npos);
  options = SmallOptions();
  options.model.max_memory_bytes = 8 << 20;
  const auto tight = LoadSession(ModelDirectory("tiny-distill"), options);
  ASSERT_FALSE(tight);
  EXPECT_EQ(tight.error().code, Code::kResourceExhausted);
}

TEST(LoadSession, ShowsTheMemoryPlanBeforeItAllocates) {
  LoadOptions options = SmallOptions();
  int64_t planned_pages = 0;
  options.model.on_plan = [&](const cost::MemoryPlan& plan) { planned_pages = plan.num_pages; };
  const auto loaded = LoadSession(ModelDirectory("tiny-distill"), options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_GT(planned_pages, 0);
  EXPECT_EQ((*loaded)->session().stats().pages_total, planned_pages);
}

}  // namespace
}  // namespace fathom::session
