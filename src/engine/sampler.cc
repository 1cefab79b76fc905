#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/strings.h"

namespace fathom::engine {
namespace {

struct Range {
  std::string_view name;
  float value;
  float low;
  float high;
  std::string_view legal;
};

}  // namespace

Status ValidateSampling(const SamplingParams& params, int32_t vocab_size) {
  constexpr float kTiny = std::numeric_limits<float>::min();
  const float below_one = std::nextafter(1.0F, 0.0F);
  const std::array<Range, 6> ranges = {{
      {"temperature", params.temperature, 0, 100, "0 to 100"},
      {"top_p", params.top_p, kTiny, 1, "above 0, at most 1"},
      {"min_p", params.min_p, 0, below_one, "at least 0, below 1"},
      {"presence_penalty", params.presence_penalty, -2, 2, "-2 to 2"},
      {"frequency_penalty", params.frequency_penalty, -2, 2, "-2 to 2"},
      {"repetition_penalty", params.repetition_penalty, 0.01F, 100, "0.01 to 100"},
  }};
  for (const Range& range : ranges) {
    if (!(range.value >= range.low && range.value <= range.high)) {  // false for NaN
      return Err(Code::kInvalidArgument, "{} is {}, expected {}", range.name, range.value,
                 range.legal);
    }
  }
  if (params.top_k < 0) {
    return Err(Code::kInvalidArgument, "top_k is {}, expected 0 (off) or more", params.top_k);
  }
  if (params.top_logprobs < -1 || params.top_logprobs > ops::sample::kMaxTopLogprobs) {
    return Err(Code::kInvalidArgument, "top_logprobs is {}, expected 0 to {}", params.top_logprobs,
               ops::sample::kMaxTopLogprobs);
  }
  std::vector<int32_t> ids;
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return Err(Code::kInvalidArgument, "logit_bias names token {}, the vocabulary has 0 to {}",
                 token, vocab_size - 1);
    }
    if (!(bias >= -100 && bias <= 100)) {
      return Err(Code::kInvalidArgument, "logit_bias of token {} is {}, expected -100 to 100",
                 token, bias);
    }
    ids.push_back(token);
  }
  std::ranges::sort(ids);
  if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end()) {
    return Err(Code::kInvalidArgument, "logit_bias names token {} twice", *twice);
  }
  return {};
}

Sampler::Sampler(const RequestSpec& spec, uint64_t default_seed, int32_t vocab_size,
                 int32_t max_total)
    : constraint_(spec.constraint.get()) {
  const SamplingParams& p = spec.sampling;
  const std::string_view id(reinterpret_cast<const char*>(&spec.id), sizeof(spec.id));
  row_ = {.seed = p.seed.value_or(Hash64(id, default_seed)),
          .temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .repetition_penalty = p.repetition_penalty,
          .top_logprobs = p.top_logprobs};
  for (const auto& [token, bias] : p.logit_bias) biases_.push_back({.token = token, .value = bias});
  penalises_ = p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
  if (!penalises_) return;
  occurrences_.reserve(static_cast<size_t>(std::min(vocab_size, max_total)));
  if (p.repetition_penalty == 1) return;  // the others look at the answer alone
  std::vector<int32_t> prompt = spec.prompt;
  std::ranges::sort(prompt);
  prompt.erase(std::unique(prompt.begin(), prompt.end()), prompt.end());
  for (const int32_t token : prompt) occurrences_.push_back({.token = token});
}

ops::sample::Occurrence& Sampler::OccurrenceOf(int32_t token) {
  const auto at =
      std::ranges::lower_bound(occurrences_, token, {}, &ops::sample::Occurrence::token);
  if (at != occurrences_.end() && at->token == token) return *at;
  return *occurrences_.insert(at, {.token = token});
}

void Sampler::Commit(int32_t token) {
  if (penalises_) ++OccurrenceOf(token).generated;
  if (constraint_ != nullptr) constraint_->Accept(token);
}

ops::sample::Row Sampler::RowFor(uint64_t index) const {
  ops::sample::Row row = row_;
  row.index = index;
  return row;
}

}  // namespace fathom::engine
