#pragma once
// What a client asks the engine for, in tokens, and what it gets back. Text is session's business.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace fathom::engine {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0: the most likely token, ties to the lowest id
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: off
  float min_p = 0.0f;        // [0, 1)
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;  // > 0
  std::vector<std::pair<int32_t, float>> logit_bias;
  // The random numbers of token i depend on (seed, i) alone: the same whatever the batch.
  std::optional<uint64_t> seed;
  int32_t top_logprobs = -1;  // -1: none; k >= 0: the chosen token's and the k most likely
};

// Legal next tokens, for grammars. Called on the engine's thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the bits of illegal ids in mask [ceil(vocab / 64)].
  virtual void Mask(std::span<uint64_t> mask) = 0;
  virtual void Accept(int32_t token) = 0;
};

enum class FinishReason : uint8_t {
  kStop,       // a stop token, or the session stopped it (stop string)
  kLength,     // max_tokens, or the context is full
  kCancelled,  // the client went away
  kDeadline,
  kError,
};
std::string_view NameOf(FinishReason reason);

struct RequestSpec {
  RequestId id = 0;             // unique; the front end chooses it so that its events carry it too
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  int32_t max_tokens = 0;  // >= 1
  std::vector<int32_t> stop_tokens;
  bool ignore_stop_tokens = false;
  int32_t priority = 0;     // higher first
  int64_t deadline_ns = 0;  // monotonic; 0: none
  std::string tenant;       // salts the prefix cache; empty: the shared one
  // The chat template dropped thinking from the history: a reason why a cached prefix ends.
  bool stripped_thinking = false;
  std::shared_ptr<TokenConstraint> constraint;
};

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct TokenOutput {
  int32_t token = 0;
  float logprob = 0;            // of the model's distribution, before temperature and filters
  std::vector<TopLogprob> top;  // filled when top_logprobs > 0
  int64_t time_ns = 0;          // when it was sampled
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_prompt_tokens = 0;
  int32_t generated_tokens = 0;
};

// Called on the engine's thread; must not block and must not call back into the engine, except
// that OnTokens may return false: the request ends with kStop after these tokens.
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  virtual bool OnTokens(std::span<const TokenOutput> tokens) = 0;
  virtual void OnFinish(FinishReason reason, const Usage& usage, const Error* error) = 0;
};

}  // namespace fathom::engine
