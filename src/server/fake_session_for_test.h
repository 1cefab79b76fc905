#pragma once
// A session without a model, for tests of the server: tokens are bytes, the answer is a fixed text
// turned by the seed, one character a step of one millisecond. It emits the engine's events, so
// that ledgers and metrics have something to say. Of a stop string only the last character is held
// back. Not part of the product.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "event/ring.h"
#include "session/session.h"

namespace fathom::server {

class FakeSession : public session::Session {
 public:
  static constexpr int32_t kEnd = 256;
  static constexpr int32_t kVocab = 257;
  static constexpr int32_t kContext = 2000;
  // Multi-byte characters come out whole.
  static constexpr std::string_view kText = "The sea is deep, 深い海. Stop here; sound it again. ";
  static constexpr std::string_view kThought = "Let me sound it.";

  explicit FakeSession(event::Sink sink,
                       std::chrono::microseconds step = std::chrono::microseconds(1000))
      : sink_(sink), step_(step), thread_([this] { Loop(); }) {
    info_.name = "fake";
    info_.vocab_size = kVocab;
    info_.max_context_tokens = kContext;
    info_.template_family = "fake";
    info_.end_tokens = {kEnd};
  }
  ~FakeSession() override {
    stop_ = true;
    thread_.join();
  }

  const session::ModelInfo& model() const override { return info_; }

  Status Complete(session::CompletionParams params,
                  std::shared_ptr<session::TextListener> listener) override {
    const size_t tokens = params.prompt.index() == 0
                              ? std::get<std::string>(params.prompt).size()
                              : std::get<std::vector<int32_t>>(params.prompt).size();
    return Submit(params, std::max<size_t>(tokens, 1), "", std::move(listener));
  }
  Status Chat(session::ChatParams params,
              std::shared_ptr<session::TextListener> listener) override {
    FATHOM_ASSIGN_OR_RETURN(const auto tokens, TokenizeChat(params));
    return Submit(params, tokens.size(), params.thinking.value_or(false) ? kThought : "",
                  std::move(listener));
  }
  void Cancel(engine::RequestId id) override {
    std::lock_guard lock(mutex_);
    if (const auto found = live_.find(id); found != live_.end()) found->second.cancelled = true;
  }

  Result<std::vector<int32_t>> Tokenize(std::string_view text, bool) const override {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  Result<std::vector<int32_t>> TokenizeChat(const session::ChatParams& params) const override {
    std::string text;
    for (const auto& message : params.messages) text += message.content + "\n";
    return Tokenize(text, false);
  }
  Result<std::string> Detokenize(std::span<const int32_t> tokens) const override {
    std::string out;
    for (const int32_t token : tokens) out += TokenBytes(token);
    return out;
  }
  std::string TokenBytes(int32_t token) const override {
    return token < kEnd ? std::string(1, static_cast<char>(token)) : "<end>";
  }
  engine::EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    engine::EngineStats stats;
    stats.running = static_cast<int32_t>(live_.size());
    stats.pages_total = 100;
    stats.pages_free = 100;
    stats.generated_tokens = generated_;
    stats.healthy = healthy;
    return stats;
  }
  void Drain(int64_t deadline_ns) override {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        draining_ = true;
        if (live_.empty()) return;
        if (NowNs() > deadline_ns) {
          for (auto& [id, live] : live_) live.cancelled = true;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  size_t num_live() const {
    std::lock_guard lock(mutex_);
    return live_.size();
  }
  uint64_t num_cancelled() const { return cancelled_; }
  std::atomic<bool> healthy{true};

 private:
  struct Live {
    int32_t choice = 0;
    std::shared_ptr<session::TextListener> listener;
    session::GenerationParams params;
    std::string thought, text;
    size_t prompt_tokens = 0;
    int32_t limit = 0;
    int32_t generated = 0;
    size_t turn = 0;
    bool cancelled = false;
    bool scheduled = false;
  };

  Status Submit(const session::GenerationParams& params, size_t prompt_tokens,
                std::string_view thought, std::shared_ptr<session::TextListener> listener) {
    const int32_t room = kContext - static_cast<int32_t>(prompt_tokens);
    if (params.max_tokens.value_or(1) > room) {
      return Err(Code::kInvalidArgument,
                 "prompt of {} tokens and max_tokens of {} exceed the context of {}", prompt_tokens,
                 params.max_tokens.value_or(1), kContext);
    }
    std::lock_guard lock(mutex_);
    if (draining_) return Err(Code::kUnavailable, "draining");
    for (int32_t k = 0; k < params.n; ++k) {
      const engine::RequestId id = params.id + static_cast<uint64_t>(k);
      const int64_t now = NowNs();
      sink_.Emit({.start_ns = now,
                  .duration_ns = 1000,
                  .request_id = id,
                  .value = prompt_tokens,
                  .kind = event::Kind::kTokenize});
      sink_.Emit({.start_ns = now + 1000,
                  .request_id = id,
                  .value = prompt_tokens,
                  .kind = event::Kind::kQueued});
      Live& live = live_[id];
      live.choice = k;
      live.listener = listener;
      live.params = params;
      live.thought = thought;
      live.prompt_tokens = prompt_tokens;
      live.limit = params.max_tokens.value_or(room);
      live.turn =
          params.sampling.temperature == 0
              ? 0
              : (params.sampling.seed.value_or(id) + static_cast<uint64_t>(k)) % kText.size();
    }
    return {};
  }

  void Loop() {
    while (!stop_) {
      const int64_t begin = NowNs();
      std::this_thread::sleep_for(step_);
      std::lock_guard lock(mutex_);
      if (live_.empty()) continue;
      ++step_id_;
      uint64_t tokens = 0, prompts = 0;
      for (auto& [id, live] : live_) {
        const bool prompt = !live.scheduled;
        if (prompt) {
          sink_.Emit({.start_ns = begin,
                      .request_id = id,
                      .step_id = step_id_,
                      .kind = event::Kind::kScheduled});
        }
        live.scheduled = true;
        const uint64_t n = prompt ? live.prompt_tokens : 1;
        tokens += n;
        prompts += prompt ? n : 0;
        sink_.Emit({.start_ns = begin,
                    .request_id = id,
                    .step_id = step_id_,
                    .value = n,
                    .flags = prompt ? event::kPromptRole : event::kGeneratedRole,
                    .kind = event::Kind::kStepSequence});
      }
      const int64_t end = NowNs();
      sink_.Emit({.start_ns = begin,
                  .duration_ns = end - begin,
                  .step_id = step_id_,
                  .layer = 0,
                  .kind = event::Kind::kOp,
                  .op = event::Op::kAttention});
      sink_.Emit({.start_ns = begin,
                  .duration_ns = end - begin,
                  .step_id = step_id_,
                  .value = tokens,
                  .aux = prompts,
                  .kind = event::Kind::kStep});
      for (auto it = live_.begin(); it != live_.end();) {
        it = Advance(it->first, it->second, end) ? live_.erase(it) : std::next(it);
      }
    }
  }

  // One character further; true when the request is over.
  bool Advance(engine::RequestId id, Live& live, int64_t now) {
    session::Finish finish;
    if (live.cancelled || (live.params.deadline_ns > 0 && now > live.params.deadline_ns)) {
      finish.reason =
          live.cancelled ? engine::FinishReason::kCancelled : engine::FinishReason::kDeadline;
      cancelled_ += live.cancelled ? 1 : 0;
      End(id, live, finish);
      return true;
    }
    session::TextDelta delta;
    const auto done = static_cast<size_t>(live.generated);
    std::string piece;
    if (done < live.thought.size()) {
      delta.reasoning_content = piece = live.thought.substr(done, 1);
    } else {
      const size_t at = live.turn + done - live.thought.size();
      piece = std::string(1, kText[at % kText.size()]);
      if ((piece[0] & 0x80) != 0) {  // a character as a whole, at its first byte
        const bool first = (piece[0] & 0xC0) == 0xC0;
        piece = first ? std::string(kText.substr(at % kText.size(), 3)) : "";
      }
      delta.content = piece;
      live.text += piece;
    }
    ++live.generated;
    ++generated_;
    delta.num_tokens = 1;
    if (live.params.sampling.top_logprobs >= 0) {
      session::TokenLogprob& logprob = delta.logprobs.emplace_back();
      logprob.bytes = piece;
      logprob.logprob = -0.5f;
      for (int32_t i = 0; i < live.params.sampling.top_logprobs; ++i) {
        logprob.top.push_back({.token = i,
                               .bytes = std::string(1, static_cast<char>('a' + i)),
                               .logprob = -0.5f - static_cast<float>(i)});
      }
    }
    sink_.Emit({.start_ns = now,
                .request_id = id,
                .step_id = step_id_,
                .value = static_cast<uint64_t>(live.generated - 1),
                .kind = event::Kind::kToken});
    for (const std::string& stop : live.params.stop) {
      if (live.text.ends_with(stop)) {
        finish.stop_text = stop;
        delta.content.clear();
        live.listener->OnDelta(live.choice, delta);
        End(id, live, finish);
        return true;
      }
    }
    live.listener->OnDelta(live.choice, delta);
    if (live.generated < live.limit) return false;
    finish.reason = engine::FinishReason::kLength;
    End(id, live, finish);
    return true;
  }

  void End(engine::RequestId id, Live& live, session::Finish& finish) {
    finish.usage.prompt_tokens = static_cast<int32_t>(live.prompt_tokens);
    finish.usage.generated_tokens = live.generated;
    finish.reasoning_tokens = std::min(live.generated, static_cast<int32_t>(live.thought.size()));
    sink_.Emit({.start_ns = NowNs(),
                .request_id = id,
                .value = static_cast<uint64_t>(live.generated),
                .flags = static_cast<uint16_t>(finish.reason),
                .kind = event::Kind::kFinished});
    live.listener->OnFinish(live.choice, finish);
  }

  event::Sink sink_;
  std::chrono::microseconds step_;
  session::ModelInfo info_;
  mutable std::mutex mutex_;
  std::map<engine::RequestId, Live> live_;
  uint64_t step_id_ = 0;
  uint64_t generated_ = 0;
  bool draining_ = false;
  std::atomic<uint64_t> cancelled_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses the rest
};

}  // namespace fathom::server
