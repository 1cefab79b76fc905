#pragma once
// What the engine knows of one request while it lives. The scheduler owns the scheduling state, the
// engine the rest; both run on the engine's thread.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace fathom::engine {

struct Sequence {
  enum class State : uint8_t { kWaiting, kRunning, kEnded };

  Sequence(RequestSpec request, std::shared_ptr<RequestListener> to)
      : spec(std::move(request)),
        listener(std::move(to)),
        num_prompt(static_cast<int32_t>(spec.prompt.size())) {}

  // Fixed at admission.
  RequestSpec spec;
  std::shared_ptr<RequestListener> listener;
  int32_t num_prompt;
  int32_t max_total = 0;  // prompt and generated tokens at most
  int64_t order = 0;      // smaller goes first: arrival, made earlier by priority
  int32_t rope_row = 0;
  Sampler sampler;
  // Sampler::needs_tokens_on_host: no step is scheduled ahead of the results of the last.
  bool needs_tokens_on_host = false;

  // Scheduling state.
  State state = State::kWaiting;
  std::vector<int32_t> tokens;  // prompt and committed generated tokens
  int32_t scheduled = 0;  // leading tokens whose keys and values exist once all steps are done
  int32_t computed = 0;   // of them, by steps whose results have arrived
  int32_t in_flight_steps = 0;
  int32_t in_flight_min = 0;  // tokens that these steps will yield, at least and at most
  int32_t in_flight_max = 0;
  uint64_t last_step = 0;  // the newest step that touches its pages
  std::vector<PageId> pages;
  PagePath path;
  int32_t published = 0;  // pages
  int32_t slot = -1;      // where its sampled token lies on the device; held while it has pages
  bool release_pending = false;

  int32_t cached_prompt_tokens = 0;  // at its first admission
  bool admitted = false;             // at least once

  int32_t num_generated() const { return static_cast<int32_t>(tokens.size()) - num_prompt; }
  // Tokens known or certain to come: the next step may compute up to this one.
  int32_t logical_length() const { return static_cast<int32_t>(tokens.size()) + in_flight_min; }
};

}  // namespace fathom::engine
