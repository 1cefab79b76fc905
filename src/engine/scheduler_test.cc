#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace fathom::engine {
namespace {

constexpr int32_t kStopToken = 7;

// A model without arithmetic: each token depends on all tokens before it and on the roles under
// which they were computed, as pages remember them.
uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

struct Config {
  SchedulerOptions scheduler;
  int32_t num_pages = 16;
  int32_t page_tokens = 4;
  int depth = 1;
  bool prefix_cache = true;
  int32_t stop_every = 0;  // one token in so many is the stop token
};

// Drives a scheduler with a device that runs `depth` steps late, and checks every rule on the way.
class Simulation {
 public:
  Simulation(const Config& config, uint32_t seed)
      : config_(config),
        pool_(config.num_pages),
        cache_(pool_, {.page_tokens = config.page_tokens, .enabled = config.prefix_cache}, {}),
        scheduler_(config.scheduler, cache_),
        random_(seed),
        kv_(static_cast<size_t>(config.num_pages) * config.page_tokens) {}

  Sequence& Add(std::vector<int32_t> prompt, int32_t max_tokens, int32_t priority = 0,
                int64_t deadline_ns = 0, bool on_host = false) {
    RequestSpec spec;
    spec.id = sequences_.size() + 1;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.priority = priority;
    spec.deadline_ns = deadline_ns;
    spec.stop_tokens = {kStopToken};
    auto sequence = std::make_unique<Sequence>(std::move(spec), nullptr);
    sequence->max_total =
        std::min(sequence->num_prompt + max_tokens, config_.num_pages * config_.page_tokens);
    sequence->needs_tokens_on_host = on_host;
    sequence->path = cache_.OpenPath(0, "", sequence->spec.prompt, sequence->max_total);
    scheduler_.Add(*sequence, now_);
    sequences_.push_back(std::move(sequence));
    return *sequences_.back();
  }

  // One step of the device. False when nothing is left to do.
  bool Step() {
    now_ += 1'000'000;
    Batch batch;
    batch.entries.reserve(static_cast<size_t>(config_.scheduler.max_running));
    if (static_cast<int>(in_flight_.size()) < config_.depth) {
      scheduler_.Schedule(now_, batch, transitions_);
      for (Sequence* sequence : transitions_.expired) Finish(*sequence, FinishReason::kDeadline);
      for (Sequence* sequence : transitions_.admitted) admissions_.push_back(sequence->spec.id);
      CheckBatch(batch);
    }
    CheckPages();
    if (!batch.entries.empty()) {
      in_flight_.push_back(Layout(batch));
      if (static_cast<int>(in_flight_.size()) < config_.depth) return true;
    } else if (in_flight_.empty()) {
      EXPECT_EQ(scheduler_.num_running() + scheduler_.num_waiting(), 0) << "stuck";
      return false;
    }
    RunOldest();
    return true;
  }

  void RunAll(int max_steps = 100'000) {
    while (Step()) ASSERT_GT(--max_steps, 0) << "does not end";
    EXPECT_EQ(pool_.used(), 0);
    EXPECT_EQ(finished_.size(), sequences_.size());
  }

  void End(Sequence& sequence) {
    if (sequence.state == Sequence::State::kEnded) return;
    scheduler_.End(sequence);
    Finish(sequence, FinishReason::kCancelled);
  }

  // What the sequence would generate alone.
  std::vector<int32_t> Solo(const Sequence& sequence) const {
    std::vector<int32_t> tokens = sequence.spec.prompt;
    uint64_t state = 0;
    for (int32_t i = 0; i < sequence.max_total; ++i) {
      if (i >= static_cast<int32_t>(tokens.size())) {
        tokens.push_back(TokenOf(state));
        if (tokens.back() == kStopToken) break;
      }
      state = Mix(state, Key(tokens[i], i, i < sequence.num_prompt));
    }
    return tokens;
  }

  std::map<RequestId, FinishReason>& finished() { return finished_; }
  std::vector<RequestId>& admissions() { return admissions_; }
  Scheduler& scheduler() { return scheduler_; }
  PrefixCache& cache() { return cache_; }
  PagePool& pool() { return pool_; }
  std::vector<std::unique_ptr<Sequence>>& sequences() { return sequences_; }
  const Batch& last_batch() const { return last_; }
  const Transitions& transitions() const { return transitions_; }
  std::mt19937& random() { return random_; }
  void Advance(int64_t ns) { now_ += ns; }
  int64_t now() const { return now_; }

 private:
  // The page table is copied at launch, as the engine does.
  struct Laid {
    Batch batch;
    std::vector<std::vector<PageId>> pages;
  };

  static uint64_t Key(int32_t token, int32_t position, bool prompt) {
    return static_cast<uint64_t>(token) * 4096 + static_cast<uint64_t>(position) * 2 + prompt;
  }
  int32_t TokenOf(uint64_t state) const {
    if (config_.stop_every > 0 && state % config_.stop_every == 0) return kStopToken;
    return static_cast<int32_t>(10 + (state >> 20) % 50);
  }

  Laid Layout(const Batch& batch) {
    Laid laid{.batch = batch};
    for (const BatchEntry& entry : batch.entries) laid.pages.push_back(entry.sequence->pages);
    return laid;
  }

  void CheckBatch(const Batch& batch) {
    last_ = batch;
    int32_t tokens = 0;
    int32_t prompts = 0;
    int32_t catching_up = 0;
    bool others_generate = false;
    std::set<const Sequence*> seen;
    for (const BatchEntry& entry : batch.entries) {
      const Sequence& s = *entry.sequence;
      ASSERT_TRUE(seen.insert(&s).second) << "two entries of one sequence";
      ASSERT_EQ(s.state, Sequence::State::kRunning);
      ASSERT_GT(entry.count, 0);
      tokens += entry.count;
      const int32_t end = entry.first_position + entry.count;
      if (entry.role == ops::Role::kPrompt) {
        prompts += entry.count;
        ASSERT_LE(end, s.num_prompt) << "prompt and generated tokens in one entry";
      } else {
        ASSERT_GE(entry.first_position, s.num_prompt);
      }
      ASSERT_LE(end, s.max_total);
      if (s.needs_tokens_on_host && entry.needs_logits) {
        ASSERT_EQ(s.in_flight_max, 1 + entry.num_draft) << "its last token is not known yet";
      }
      ASSERT_LE(end, static_cast<int32_t>(s.pages.size()) * config_.page_tokens);
      const bool catches_up = entry.role == ops::Role::kPrompt || !entry.needs_logits ||
                              entry.count > 1 + entry.num_draft;
      catching_up += catches_up ? entry.count : 0;
      const auto& new_ones = transitions_.admitted;
      others_generate |= !catches_up && std::count(new_ones.begin(), new_ones.end(), &s) == 0;
      for (int32_t p = entry.first_position; p < end; ++p) {  // nobody else writes or reads there
        const PageId page = s.pages[p / config_.page_tokens];
        ASSERT_EQ(pool_.references(page), 1);
        ASSERT_FALSE(IsInFlight(page, s)) << "a page was given away before its last reader ran";
      }
    }
    ASSERT_EQ(tokens, batch.num_tokens);
    ASSERT_EQ(prompts, batch.num_prompt_tokens);
    ASSERT_LE(tokens, config_.scheduler.token_budget);
    ASSERT_LE(batch.entries.size(), static_cast<size_t>(config_.scheduler.max_running));
    if (others_generate) {
      ASSERT_LE(catching_up, config_.scheduler.max_prompt_tokens_per_step);
    }
    std::set<int32_t> slots;
    for (const Sequence* s : scheduler_.running()) ASSERT_TRUE(slots.insert(s->slot).second);
  }

  bool IsInFlight(PageId page, const Sequence& except) const {
    for (const Laid& laid : in_flight_) {
      for (size_t i = 0; i < laid.pages.size(); ++i) {
        if (laid.batch.entries[i].sequence == &except) continue;
        if (std::count(laid.pages[i].begin(), laid.pages[i].end(), page) > 0) return true;
      }
    }
    return false;
  }

  void CheckPages() {
    ASSERT_EQ(pool_.free() + pool_.cached() + pool_.used(), pool_.total());
    std::set<PageId> held;
    for (const auto& s : sequences_) held.insert(s->pages.begin(), s->pages.end());
    ASSERT_GE(pool_.used(), static_cast<int32_t>(held.size()));
  }

  // The device: writes what each token leads to into its page, reads what the position before left
  // in its page. A page that was reused too early, or a wrong position, gives other tokens.
  void RunOldest() {
    const Laid laid = std::move(in_flight_.front());
    in_flight_.pop_front();
    std::vector<std::vector<int32_t>> yields;
    for (size_t i = 0; i < laid.batch.entries.size(); ++i) {
      const BatchEntry& entry = laid.batch.entries[i];
      const Sequence& s = *entry.sequence;
      std::vector<int32_t>& device_tokens = device_tokens_[s.spec.id];
      if (device_tokens.empty()) device_tokens = s.spec.prompt;
      const auto at = [&](int32_t p) -> uint64_t& {
        const PageId page = laid.pages[i][p / config_.page_tokens];
        return kv_[static_cast<size_t>(page) * config_.page_tokens + p % config_.page_tokens];
      };
      const int32_t sure = entry.count - entry.num_draft;
      uint64_t state = entry.first_position == 0 ? 0 : at(entry.first_position - 1);
      for (int32_t p = entry.first_position; p < entry.first_position + sure; ++p) {
        ASSERT_LT(p, static_cast<int32_t>(device_tokens.size())) << "an input that is not sampled";
        state = Mix(state, Key(device_tokens[p], p, entry.role == ops::Role::kPrompt));
        at(p) = state;
      }
      yields.emplace_back();
      if (!entry.needs_logits) continue;
      // The draft is right as often as chance has it.
      const auto accepted =
          entry.num_draft == 0 ? 0 : static_cast<int32_t>(random_() % (entry.num_draft + 1));
      device_tokens.resize(entry.first_position + sure);
      for (int32_t k = 0; k <= entry.num_draft; ++k) {
        const int32_t p = entry.first_position + sure + k;
        if (k <= accepted) {
          device_tokens.push_back(TokenOf(state));
          yields.back().push_back(device_tokens.back());
        }
        if (k < entry.num_draft) {
          state = k < accepted ? Mix(state, Key(device_tokens[p], p, false)) : 0xbad;
          at(p) = state;
        }
      }
    }
    for (size_t i = 0; i < laid.batch.entries.size(); ++i) {
      Sequence& s = *laid.batch.entries[i].sequence;
      const Scheduler::Outcome outcome = scheduler_.Apply(laid.batch.entries[i], yields[i]);
      if (outcome.finish) Finish(s, *outcome.finish);
    }
    scheduler_.Complete(laid.batch.step_id);
    scheduler_.retired().clear();
  }

  void Finish(const Sequence& sequence, FinishReason reason) {
    ASSERT_TRUE(finished_.emplace(sequence.spec.id, reason).second) << "finished twice";
  }

  Config config_;
  PagePool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  std::mt19937 random_;
  std::vector<uint64_t> kv_;
  std::map<RequestId, std::vector<int32_t>> device_tokens_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::deque<Laid> in_flight_;
  std::map<RequestId, FinishReason> finished_;
  std::vector<RequestId> admissions_;
  Transitions transitions_;
  Batch last_;
  int64_t now_ = 1'000'000'000;
};

std::vector<int32_t> Prompt(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[i] = 100 + (first + i) % 1000;
  return tokens;
}

Config SmallConfig() {
  Config config;
  config.scheduler = {.max_running = 4, .token_budget = 16, .max_prompt_tokens_per_step = 6};
  return config;
}

TEST(Scheduler, APromptIsCutIntoChunksWhileOthersGenerate) {
  Simulation sim(SmallConfig(), 1);
  sim.Add(Prompt(0, 3), 20);
  sim.Step();
  sim.Add(Prompt(500, 20), 4);
  std::vector<int32_t> chunks;
  for (int i = 0; i < 4; ++i) {
    sim.Step();
    ASSERT_EQ(sim.last_batch().entries.size(), 2u);
    EXPECT_EQ(sim.last_batch().entries[0].count, 1);
    chunks.push_back(sim.last_batch().entries[1].count);
    EXPECT_EQ(sim.last_batch().entries[1].needs_logits, i == 3);
  }
  EXPECT_EQ(chunks, (std::vector<int32_t>{6, 6, 6, 2}));
  sim.RunAll();
}

TEST(Scheduler, APromptAloneTakesTheWholeBudget) {
  Simulation sim(SmallConfig(), 1);
  sim.Add(Prompt(0, 20), 2);
  sim.Step();
  EXPECT_EQ(sim.last_batch().num_prompt_tokens, 16);
  sim.RunAll();
}

TEST(Scheduler, TheYoungestGivesItsPagesBackAndItsTokensStay) {
  Config config = SmallConfig();
  config.num_pages = 8;
  config.prefix_cache = false;
  Simulation sim(config, 1);
  Sequence& old = sim.Add(Prompt(0, 8), 20);
  sim.Advance(1);
  Sequence& young = sim.Add(Prompt(300, 8), 20);
  RequestId preempted = 0;
  while (sim.Step()) {
    for (const auto& p : sim.transitions().preempted) preempted = p.sequence->spec.id;
  }
  EXPECT_EQ(preempted, young.spec.id);
  EXPECT_GT(sim.scheduler().preemptions(), 0u);
  EXPECT_EQ(old.tokens, sim.Solo(old));
  EXPECT_EQ(young.tokens, sim.Solo(young));
  EXPECT_EQ(sim.pool().free(), 8);
}

TEST(Scheduler, HigherPriorityGoesFirstAndTakesASlotFromLower) {
  Config config = SmallConfig();
  config.scheduler.max_running = 2;
  Simulation sim(config, 1);
  sim.Add(Prompt(0, 4), 12);
  sim.Add(Prompt(100, 4), 12);
  sim.Add(Prompt(200, 4), 12);
  sim.Step();
  sim.Add(Prompt(300, 4), 4, /*priority=*/1);
  sim.RunAll();
  EXPECT_EQ(sim.admissions(), (std::vector<RequestId>{1, 2, 4, 2, 3}));
  EXPECT_EQ(sim.scheduler().preemptions(), 1u);
  for (const auto& s : sim.sequences()) EXPECT_EQ(s->tokens, sim.Solo(*s));
}

TEST(Scheduler, ALowPriorityIsPassedOnlyWithinTheStep) {
  Config config = SmallConfig();
  config.scheduler.max_running = 1;
  config.scheduler.priority_step_ns = 100'000'000;  // 100 steps of the simulation
  Simulation sim(config, 1);
  sim.Add(Prompt(0, 4), 10);
  sim.Step();
  Sequence& low = sim.Add(Prompt(50, 4), 4);
  // High priorities arrive faster than they can be served, for ever.
  int steps = 0;
  for (; low.state != Sequence::State::kEnded && steps < 2000; ++steps) {
    if (steps % 5 == 0) sim.Add(Prompt(steps, 4), 10, /*priority=*/1);
    sim.Step();
  }
  EXPECT_LT(steps, 400);
  sim.RunAll();
}

TEST(Scheduler, EqualPromptsThatArriveTogetherAreComputedOnce) {
  Config config = SmallConfig();
  config.num_pages = 64;
  Simulation sim(config, 1);
  for (int i = 0; i < 4; ++i) sim.Add(Prompt(0, 18), 3);
  int32_t prompt_tokens = 0;
  while (sim.Step()) prompt_tokens += sim.last_batch().num_prompt_tokens;
  EXPECT_EQ(prompt_tokens, 18 + 3 * 2);
  for (const auto& s : sim.sequences()) EXPECT_EQ(s->tokens, sim.Solo(*s));
}

TEST(Scheduler, DeadlinesEndWaitingAndRunningSequences) {
  for (const int depth : {1, 2}) {
    Config config = SmallConfig();
    config.depth = depth;
    config.scheduler.max_running = 1;
    Simulation sim(config, 1);
    sim.Add(Prompt(0, 4), 40, 0, sim.now() + 10'000'000);
    sim.Add(Prompt(100, 4), 40, 0, sim.now() + 5'000'000);
    sim.Add(Prompt(200, 4), 4, 0, sim.now() + 10'000'000'000);
    sim.RunAll();
    EXPECT_EQ(sim.finished()[1], FinishReason::kDeadline);
    EXPECT_EQ(sim.finished()[2], FinishReason::kDeadline);
    EXPECT_EQ(sim.finished()[3], FinishReason::kLength);
  }
}

TEST(Scheduler, AStepIsScheduledBeforeTheTokenOfTheLastArrives) {
  Config config = SmallConfig();
  config.depth = 2;
  Simulation sim(config, 1);
  Sequence& s = sim.Add(Prompt(0, 4), 3);
  sim.Step();
  sim.Step();
  ASSERT_EQ(sim.last_batch().entries.size(), 1u);
  EXPECT_EQ(sim.last_batch().entries[0].first_position, 4);
  EXPECT_EQ(sim.last_batch().entries[0].role, ops::Role::kGenerated);
  sim.RunAll();
  EXPECT_EQ(s.tokens, sim.Solo(s));
}

// Random loads, each rule checked at every step, each sequence's tokens compared with those it
// generates alone.
void RunRandom(uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&random](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  Config config;
  config.page_tokens = pick(1, 5);
  config.num_pages = pick(8, 40);
  config.depth = pick(1, 3);
  config.prefix_cache = pick(0, 3) != 0;
  config.stop_every = pick(0, 1) * 20;
  config.scheduler.max_running = pick(1, 6);
  config.scheduler.num_draft_tokens = pick(0, 3) == 0 ? pick(1, 3) : 0;
  config.scheduler.token_budget =
      config.scheduler.max_running * (1 + config.scheduler.num_draft_tokens) + pick(1, 20);
  config.scheduler.max_prompt_tokens_per_step = pick(1, 12);
  config.scheduler.priority_step_ns = 20'000'000;
  Simulation sim(config, seed);
  const int32_t capacity = config.num_pages * config.page_tokens;
  std::set<RequestId> cut_short;
  const int32_t total = pick(1, 30);
  int32_t added = 0;
  for (int steps = 0; added < total || sim.scheduler().num_running() > 0; ++steps) {
    ASSERT_LT(steps, 50'000);
    while (added < total && random() % 3 == 0) {
      std::vector<int32_t> prompt = Prompt(pick(0, 2) * 10, pick(1, capacity * 2 / 3));
      if (prompt.size() > 4 && random() % 2 == 0)
        prompt[pick(0, static_cast<int32_t>(prompt.size()) - 1)] = 11;
      const bool expires = random() % 10 == 0;
      Sequence& s = sim.Add(std::move(prompt), pick(1, capacity / 2), pick(-2, 2),
                            expires ? sim.now() + pick(1, 50) * 1'000'000 : 0, random() % 4 == 0);
      if (expires) cut_short.insert(s.spec.id);
      ++added;
    }
    if (random() % 20 == 0 && !sim.sequences().empty()) {
      Sequence& s = *sim.sequences()[random() % sim.sequences().size()];
      cut_short.insert(s.spec.id);
      sim.End(s);
    }
    sim.Step();
    if (testing::Test::HasFatalFailure()) return;
  }
  sim.RunAll();
  for (const auto& s : sim.sequences()) {
    std::vector<int32_t> solo = sim.Solo(*s);
    if (cut_short.contains(s->spec.id)) solo.resize(std::min(solo.size(), s->tokens.size()));
    ASSERT_EQ(s->tokens, solo) << "request " << s->spec.id;
  }
}

TEST(SchedulerProperty, EveryRequestEndsWithTheTokensItHasAlone) {
  for (uint32_t seed = 1; seed <= 1500; ++seed) {
    RunRandom(seed);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace fathom::engine
