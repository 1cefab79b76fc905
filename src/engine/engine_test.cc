#include "engine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "base/clock.h"
#include "engine/allocation_counter.h"
#include "engine/fake_model.h"
#include "kernels/cpu/select.h"
#include "ops/deferred_device.h"

namespace fathom::engine {
namespace {

class Collector : public RequestListener {
 public:
  bool OnTokens(std::span<const TokenOutput> tokens) override {
    for (const TokenOutput& token : tokens) outputs.push_back(token);
    const bool more = stop_after == 0 || outputs.size() < stop_after;
    if (on_tokens) on_tokens(outputs.size());
    return more;
  }
  void OnFinish(FinishReason why, const Usage& used, const Error* e) override {
    const std::lock_guard lock(mutex);
    EXPECT_FALSE(done) << "finished twice";
    done = true;
    reason = why;
    usage = used;
    if (e != nullptr) error = *e;
    finished.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    finished.wait(lock, [this] { return done; });
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> result;
    for (const TokenOutput& output : outputs) result.push_back(output.token);
    return result;
  }

  size_t stop_after = 0;
  std::function<void(size_t)> on_tokens;
  std::vector<TokenOutput> outputs;
  FinishReason reason = FinishReason::kError;
  Usage usage;
  std::optional<Error> error;
  bool done = false;
  std::mutex mutex;
  std::condition_variable finished;
};

// An engine over the fake model and everything it stands on.
class Stand {
 public:
  Stand(ops::DeviceKind kind, const EngineOptions& options, int32_t page_tokens = 16,
        int32_t max_context = 400, int32_t num_groups = 1)
      : model(page_tokens, max_context, num_groups) {
    if (kind == ops::DeviceKind::kCpu) {
      device_ = ops::MakeCpuDevice();
    } else {
      device_ = std::make_unique<ops::DeferredDevice>();
    }
    options_ = options;
  }
  Engine& Start() {
    auto made = Engine::Create(
        model, options_, {*device_, pool_, **kernels::cpu::Select(""), comm_, event::Sink(&ring)});
    EXPECT_TRUE(made) << made.error().message;
    engine_ = std::move(*made);
    return *engine_;
  }
  std::shared_ptr<Collector> Submit(RequestSpec spec) {
    auto collector = std::make_shared<Collector>();
    const Status status = engine_->Submit(std::move(spec), collector);
    EXPECT_TRUE(status) << status.error().message;
    return collector;
  }
  std::vector<event::Event> Events() {
    std::vector<event::Event> events(ring.capacity());
    events.resize(ring.Drain(events));
    return events;
  }

  FakeModel model;
  event::Ring ring{1 << 16};

 private:
  std::unique_ptr<ops::Device> device_;
  ThreadPool pool_{2};
  ops::Comm comm_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

constexpr std::array kDevices = {ops::DeviceKind::kCpu, ops::DeviceKind::kDeferred};

EngineOptions SmallOptions() {
  return {.max_running = 8, .token_budget = 48, .max_prompt_tokens_per_step = 24, .num_pages = 64};
}

std::vector<int32_t> Prompt(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[i] = (first + i * 7) % FakeModel::kVocab;
  return tokens;
}

RequestSpec Spec(RequestId id, std::vector<int32_t> prompt, int32_t max_tokens) {
  RequestSpec spec{.id = id, .prompt = std::move(prompt), .max_tokens = max_tokens};
  spec.sampling.seed = 1000 + id;
  return spec;
}

// Only even tokens, and never one twice in a row.
class EvenConstraint : public TokenConstraint {
 public:
  void Mask(std::span<uint64_t> mask) override {
    for (uint64_t& word : mask) word = 0xaaaaaaaaaaaaaaaau;
    if (last_ >= 0) mask[last_ / 64] |= uint64_t{1} << (last_ % 64);
  }
  void Accept(int32_t token) override { last_ = token; }

 private:
  int32_t last_ = -1;
};

// What a request yields with nothing else in the engine.
std::vector<int32_t> Solo(RequestSpec spec, bool dynamic_rope = false) {
  if (spec.constraint) spec.constraint = std::make_shared<EvenConstraint>();
  spec.deadline_ns = 0;
  EngineOptions options = SmallOptions();
  options.prefix_cache = false;
  Stand stand(ops::DeviceKind::kCpu, options);
  if (dynamic_rope) stand.model.UseDynamicRope();
  stand.Start();
  const auto collector = stand.Submit(std::move(spec));
  collector->Wait();
  return collector->tokens();
}

TEST(Engine, GeneratesUntilMaxTokensOnEveryDevice) {
  std::vector<std::vector<int32_t>> results;
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions(), 16, 400, /*num_groups=*/2);
    Engine& engine = stand.Start();
    const auto c = stand.Submit(Spec(1, Prompt(3, 40), 25));
    c->Wait();
    EXPECT_EQ(c->reason, FinishReason::kLength);
    EXPECT_EQ(c->usage.prompt_tokens, 40);
    EXPECT_EQ(c->usage.generated_tokens, 25);
    results.push_back(c->tokens());
    engine.Drain(NowNs());
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
    EXPECT_EQ(stats.generated_tokens, 25u);
    EXPECT_EQ(stats.prompt_tokens, 40u);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Engine, StopTokensListenersAndTheContextEndARequest) {
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions(), 16, 64);
    Engine& engine = stand.Start();
    const std::vector<int32_t> all = Solo(Spec(1, Prompt(3, 10), 30));

    RequestSpec spec = Spec(1, Prompt(3, 10), 30);
    spec.stop_tokens = {all[7]};
    const size_t first =
        static_cast<size_t>(std::find(all.begin(), all.end(), all[7]) - all.begin());
    const auto stopped = stand.Submit(spec);
    stopped->Wait();
    EXPECT_EQ(stopped->reason, FinishReason::kStop);
    EXPECT_EQ(stopped->outputs.size(), first + 1);

    spec.id = 2;
    spec.ignore_stop_tokens = true;
    const auto ignoring = stand.Submit(spec);
    ignoring->Wait();
    EXPECT_EQ(ignoring->tokens(), all);

    auto listener = std::make_shared<Collector>();
    listener->stop_after = 5;
    ASSERT_TRUE(engine.Submit(Spec(3, Prompt(3, 10), 30), listener));
    listener->Wait();
    EXPECT_EQ(listener->reason, FinishReason::kStop);
    EXPECT_EQ(listener->usage.generated_tokens, 5);

    const auto full = stand.Submit(Spec(4, Prompt(3, 10), 1000));
    full->Wait();
    EXPECT_EQ(full->reason, FinishReason::kLength);
    EXPECT_EQ(full->usage.generated_tokens, 54);
  }
}

TEST(Engine, RefusesWhatCanNeverRunAndSaysWhy) {
  EngineOptions options = SmallOptions();
  options.num_pages = 4;
  Stand stand(ops::DeviceKind::kCpu, options);
  Engine& engine = stand.Start();
  EXPECT_EQ(engine.max_context_tokens(), 64);  // the pool's, not the model's
  const auto message = [&](RequestSpec spec) {
    const Status status = engine.Submit(std::move(spec), std::make_shared<Collector>());
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message(Spec(1, {}, 5)), "the prompt is empty, expected at least one token");
  EXPECT_EQ(message(Spec(1, Prompt(0, 64), 5)),
            "the prompt has 64 tokens and leaves no room for an answer in a context of 64");
  EXPECT_EQ(message(Spec(1, {1, 67}, 5)), "the prompt holds token 67, the vocabulary has 0 to 66");
  EXPECT_EQ(message(Spec(1, {1}, 0)), "max_tokens is 0, expected at least 1");
  RequestSpec spec = Spec(1, {1}, 5);
  spec.sampling.top_p = 2;
  EXPECT_EQ(message(spec), "top_p is 2, expected above 0, at most 1");
  spec = Spec(1, {1}, 5);
  spec.priority = 5000;
  EXPECT_EQ(message(spec), "priority is 5000, expected -1000 to 1000");
  engine.Drain(NowNs());
  EXPECT_EQ(message(Spec(1, {1}, 5)), "draining: no new requests are taken");
}

TEST(Engine, OptionsOutOfRangeAreErrors) {
  const auto message = [](EngineOptions options) {
    FakeModel model(16, 400);
    const auto device = ops::MakeCpuDevice();
    ThreadPool pool(1);
    ops::Comm comm;
    const auto made =
        Engine::Create(model, options, {*device, pool, **kernels::cpu::Select(""), comm, {}});
    return made ? std::string("made") : made.error().message;
  };
  EngineOptions options = SmallOptions();
  options.token_budget = 8;
  EXPECT_NE(message(options).find("token_budget is 8, expected more than max_running = 8"),
            std::string::npos);
  options = SmallOptions();
  options.num_pages = 0;
  EXPECT_NE(message(options).find("num_pages is 0"), std::string::npos);
  options = SmallOptions();
  options.max_context_tokens = 500;
  EXPECT_NE(message(options).find("max_context_tokens is 500, expected 1 to 400"),
            std::string::npos);
}

TEST(Engine, AFullQueueAndATakenIdAreRefused) {
  EngineOptions options = SmallOptions();
  options.max_queue = 2;
  options.max_running = 1;
  Stand stand(ops::DeviceKind::kCpu, options);
  Engine& engine = stand.Start();
  std::mutex hold;
  hold.lock();
  auto blocker = std::make_shared<Collector>();
  std::atomic<bool> running{false};
  blocker->on_tokens = [&](size_t n) {
    running = true;
    if (n == 1) const std::lock_guard wait(hold);
  };
  ASSERT_TRUE(engine.Submit(Spec(1, Prompt(0, 4), 4), blocker));
  while (!running) std::this_thread::yield();
  const auto a = stand.Submit(Spec(2, Prompt(0, 4), 4));
  EXPECT_EQ(engine.Submit(Spec(2, Prompt(0, 4), 4), a).error().code, Code::kInvalidArgument);
  const auto b = stand.Submit(Spec(3, Prompt(0, 4), 4));
  EXPECT_EQ(engine.stats().waiting, 2);
  std::vector<Engine::Submission> both;
  both.push_back({Spec(8, Prompt(0, 4), 4), std::make_shared<Collector>()});
  both.push_back({Spec(8, Prompt(0, 4), 4), std::make_shared<Collector>()});
  EXPECT_EQ(engine.SubmitAll(std::move(both)).error().code, Code::kInvalidArgument);
  const Status full = engine.Submit(Spec(4, Prompt(0, 4), 4), std::make_shared<Collector>());
  EXPECT_EQ(full.error().code, Code::kResourceExhausted);
  hold.unlock();
  for (const auto& c : {blocker, a, b}) c->Wait();
}

TEST(Engine, TheSameSeedGivesTheSameTokensWhateverTheBatch) {
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions());
    stand.Start();
    std::vector<std::shared_ptr<Collector>> collectors;
    for (RequestId id = 1; id <= 8; ++id) {
      RequestSpec spec = Spec(id, Prompt(5, 37), 20);
      spec.sampling.seed = 4;
      collectors.push_back(stand.Submit(spec));
    }
    for (const auto& c : collectors) c->Wait();
    for (const auto& c : collectors) EXPECT_EQ(c->tokens(), collectors[0]->tokens());
    // Seven of them found the two whole pages that the first computed.
    EXPECT_EQ(stand.model.prompt_tokens_computed(), 37u + 7 * 5);
    for (size_t i = 1; i < 8; ++i) EXPECT_EQ(collectors[i]->usage.cached_prompt_tokens, 32);
  }
}

TEST(Engine, LogprobsComeWithTheTokens) {
  Stand stand(ops::DeviceKind::kDeferred, SmallOptions());
  stand.Start();
  RequestSpec spec = Spec(1, Prompt(5, 9), 6);
  spec.sampling.temperature = 0;
  spec.sampling.top_logprobs = 3;
  const auto c = stand.Submit(spec);
  c->Wait();
  for (const TokenOutput& output : c->outputs) {
    ASSERT_EQ(output.top.size(), 3u);
    EXPECT_EQ(output.top[0].token, output.token);
    EXPECT_EQ(output.top[0].logprob, output.logprob);
    EXPECT_LT(output.logprob, 0);
    EXPECT_GE(output.top[1].logprob, output.top[2].logprob);
  }
}

TEST(Engine, CancelAndDeadlineEndOnlyTheirRequest) {
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions());
    Engine& engine = stand.Start();
    auto cancelled = std::make_shared<Collector>();
    std::atomic<bool> started{false};
    cancelled->on_tokens = [&](size_t n) { started = n >= 3; };
    ASSERT_TRUE(engine.Submit(Spec(1, Prompt(0, 10), 380), cancelled));
    const auto other = stand.Submit(Spec(2, Prompt(9, 10), 200));
    RequestSpec late = Spec(3, Prompt(9, 10), 30);
    late.deadline_ns = NowNs() - 1;
    const auto expired = stand.Submit(late);
    while (!started) std::this_thread::yield();
    engine.Cancel(1);
    engine.Cancel(77);  // unknown: ignored
    for (const auto& c : {cancelled, other, expired}) c->Wait();
    EXPECT_TRUE(cancelled->reason == FinishReason::kCancelled ||
                cancelled->reason == FinishReason::kLength);
    EXPECT_EQ(expired->reason, FinishReason::kDeadline);
    EXPECT_EQ(expired->usage.generated_tokens, 0);
    EXPECT_EQ(other->reason, FinishReason::kLength);
    EXPECT_EQ(other->tokens(), Solo(Spec(2, Prompt(9, 10), 200)));
  }
}

TEST(Engine, AModelErrorEndsAllStreamsAndTheEngineStaysUnhealthy) {
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions());
    stand.model.FailAtStep(6);
    Engine& engine = stand.Start();
    const auto a = stand.Submit(Spec(1, Prompt(0, 10), 100));
    a->Wait();
    EXPECT_EQ(a->reason, FinishReason::kError);
    ASSERT_TRUE(a->error);
    EXPECT_NE(a->error->message.find("injected failure"), std::string::npos);
    EXPECT_LE(a->outputs.size(), 5u);
    EXPECT_FALSE(engine.stats().healthy);
    const Status refused = engine.Submit(Spec(2, {1}, 1), std::make_shared<Collector>());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kUnavailable);
  }
}

TEST(Engine, BrokenLogitsEndOneStreamAlone) {
  for (const ops::DeviceKind kind : kDevices) {
    Stand stand(kind, SmallOptions());
    stand.model.PoisonAfter(66);
    Engine& engine = stand.Start();
    std::vector<int32_t> bad = {5, 66};
    RequestSpec fine = Spec(2, {5, 6, 7}, 3);
    fine.sampling.logit_bias = {{66, -100}};
    const auto a = stand.Submit(Spec(1, bad, 30));
    const auto b = stand.Submit(fine);
    a->Wait();
    b->Wait();
    EXPECT_EQ(a->reason, FinishReason::kError);
    EXPECT_NE(a->error->message.find("NaN"), std::string::npos);
    EXPECT_EQ(b->reason, FinishReason::kLength);
    EXPECT_TRUE(engine.stats().healthy);
  }
}

TEST(Engine, EventsTellARequestsStory) {
  Stand stand(ops::DeviceKind::kCpu, SmallOptions());
  Engine& engine = stand.Start();
  const auto c = stand.Submit(Spec(9, Prompt(0, 60), 5));
  c->Wait();
  engine.Drain(NowNs());
  std::map<event::Kind, int> counts;
  uint64_t prompt_tokens = 0;
  int64_t last_step_end = 0;
  for (const event::Event& e : stand.Events()) {
    ++counts[e.kind];
    if (e.kind == event::Kind::kStepSequence && e.flags == event::kPromptRole) {
      prompt_tokens += e.value;
    }
    if (e.kind == event::Kind::kStep) {
      EXPECT_GE(e.start_ns, last_step_end);
      last_step_end = e.start_ns + e.duration_ns;
    }
    if (e.kind == event::Kind::kFinished) {
      EXPECT_EQ(e.request_id, 9u);
      EXPECT_EQ(e.value, 5u);
      EXPECT_EQ(e.flags, static_cast<uint16_t>(FinishReason::kLength));
    }
  }
  EXPECT_EQ(prompt_tokens, 60u);
  EXPECT_EQ(counts[event::Kind::kQueued], 1);
  EXPECT_EQ(counts[event::Kind::kScheduled], 1);
  EXPECT_EQ(counts[event::Kind::kPrefixLookup], 1);
  EXPECT_EQ(counts[event::Kind::kCacheMiss], 1);
  EXPECT_EQ(counts[event::Kind::kToken], 5);
  EXPECT_EQ(counts[event::Kind::kFinished], 1);
  EXPECT_EQ(counts[event::Kind::kStep], 6);       // chunks of 48 and 12, then four tokens
  EXPECT_EQ(counts[event::Kind::kSchedule], 12);  // before and after each
  EXPECT_EQ(counts[event::Kind::kStepSequence], 6);
  EXPECT_EQ(counts[event::Kind::kOp], 11);  // inputs, sampling; the fake model marks nothing
}

TEST(Engine, AStepAllocatesNothing) {
  Stand stand(ops::DeviceKind::kCpu, SmallOptions());
  Engine& engine = stand.Start();
  auto counted = std::make_shared<Collector>();
  counted->outputs.reserve(400);
  counted->on_tokens = [](size_t n) {
    if (n == 20) counted_allocations = 0;
    counting_allocations = n >= 20 && n < 120;
  };
  RequestSpec penalised = Spec(2, Prompt(8, 20), 200);
  penalised.sampling.repetition_penalty = 1.2F;
  auto other = std::make_shared<Collector>();
  other->outputs.reserve(400);
  ASSERT_TRUE(engine.Submit(penalised, other));
  ASSERT_TRUE(engine.Submit(Spec(1, Prompt(0, 10), 150), counted));
  counted->Wait();
  other->Wait();
  EXPECT_EQ(counted_allocations, 0);
  EXPECT_EQ(counted->usage.generated_tokens, 150);

  counting_allocations = true;  // the counter itself works
  const std::vector<int32_t> one(100);
  counting_allocations = false;
  EXPECT_EQ(counted_allocations, 1);
}

TEST(Engine, DestructionEndsEveryStream) {
  std::vector<std::shared_ptr<Collector>> collectors;
  {
    Stand stand(ops::DeviceKind::kDeferred, SmallOptions());
    stand.Start();
    for (RequestId id = 1; id <= 20; ++id) {
      collectors.push_back(stand.Submit(Spec(id, Prompt(0, 50), 300)));
    }
  }
  for (const auto& c : collectors) {
    EXPECT_TRUE(c->done);
    EXPECT_TRUE(c->reason == FinishReason::kCancelled || c->reason == FinishReason::kLength);
  }
}

// Random loads over a pool that is too small: preemptions, prefix hits, cancels, penalties and
// grammars, and each stream is what it would have been alone.
void RunRandom(ops::DeviceKind kind, uint32_t seed, uint64_t* preemptions, uint64_t* hits) {
  SCOPED_TRACE(testing::Message() << ops::NameOf(kind) << " seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&random](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  EngineOptions options = SmallOptions();
  options.max_running = pick(1, 8);
  options.token_budget = options.max_running + pick(1, 60);
  options.max_prompt_tokens_per_step = pick(1, 30);
  options.num_pages = pick(10, 20);
  options.prefix_cache = pick(0, 3) != 0;
  const bool dynamic_rope = pick(0, 3) == 0;
  Stand stand(kind, options);
  if (dynamic_rope) stand.model.UseDynamicRope();
  Engine& engine = stand.Start();
  std::vector<RequestSpec> specs;
  std::vector<std::shared_ptr<Collector>> collectors;
  std::map<RequestId, bool> cancelled;
  const int32_t count = pick(4, 16);
  for (int32_t i = 0; i < count; ++i) {
    RequestSpec spec =
        Spec(static_cast<RequestId>(i) + 1, Prompt(pick(0, 1) * 9, pick(1, 90)), pick(1, 60));
    if (spec.prompt.size() > 3 && pick(0, 1) == 0) spec.prompt[spec.prompt.size() / 2] = 1;
    spec.priority = pick(-1, 1);
    spec.stop_tokens = {pick(0, FakeModel::kVocab - 1)};
    spec.sampling.temperature = pick(0, 3) == 0 ? 0 : 0.8F;
    if (pick(0, 3) == 0) spec.sampling.top_p = 0.7F;
    if (pick(0, 3) == 0) spec.sampling.frequency_penalty = 0.9F;
    if (pick(0, 3) == 0) spec.sampling.repetition_penalty = 1.3F;
    if (pick(0, 4) == 0) spec.constraint = std::make_shared<EvenConstraint>();
    specs.push_back(spec);
    collectors.push_back(stand.Submit(spec));
    if (pick(0, 7) == 0) {
      cancelled[spec.id] = true;
      engine.Cancel(spec.id);
    }
  }
  for (const auto& c : collectors) c->Wait();
  engine.Drain(NowNs() + 5'000'000'000);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
  *preemptions += stats.preemptions;
  *hits += stats.prefix_hits_tokens;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<int32_t> solo = Solo(specs[i], dynamic_rope);
    if (cancelled.contains(specs[i].id)) solo.resize(collectors[i]->outputs.size());
    ASSERT_EQ(collectors[i]->tokens(), solo) << "request " << specs[i].id;
  }
}

TEST(EngineProperty, EveryStreamIsWhatItWouldBeAlone) {
  uint64_t preemptions = 0;
  uint64_t hits = 0;
  for (const ops::DeviceKind kind : kDevices) {
    for (uint32_t seed = 1; seed <= 40; ++seed) {
      RunRandom(kind, seed, &preemptions, &hits);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(hits, 1000u);
}

}  // namespace
}  // namespace fathom::engine
