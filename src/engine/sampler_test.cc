#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <limits>

namespace fathom::engine {
namespace {

TEST(ValidateSampling, NamesTheFieldAndWhatIsLegal) {
  EXPECT_TRUE(ValidateSampling({}, 100));
  const auto message = [](const SamplingParams& params) {
    const Status status = ValidateSampling(params, 100);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message({.temperature = -1}), "temperature is -1, expected 0 to 100");
  EXPECT_NE(message({.temperature = std::numeric_limits<float>::quiet_NaN()}), "");
  EXPECT_EQ(message({.top_p = 0}), "top_p is 0, expected above 0, at most 1");
  EXPECT_EQ(message({.top_k = -1}), "top_k is -1, expected 0 (off) or more");
  EXPECT_EQ(message({.min_p = 1}), "min_p is 1, expected at least 0, below 1");
  EXPECT_EQ(message({.presence_penalty = 3}), "presence_penalty is 3, expected -2 to 2");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty is 0, expected 0.01 to 100");
  EXPECT_EQ(message({.logit_bias = {{100, 1}}}),
            "logit_bias names token 100, the vocabulary has 0 to 99");
  EXPECT_EQ(message({.logit_bias = {{5, 1}, {5, 2}}}), "logit_bias names token 5 twice");
  EXPECT_EQ(message({.top_logprobs = 21}), "top_logprobs is 21, expected 0 to 20");
}

TEST(Sampler, CountsTheAnswerAndKnowsThePromptOnlyForRepetition) {
  RequestSpec spec{.prompt = {7, 3, 7}};
  spec.sampling.frequency_penalty = 1;
  Sampler frequency(spec, 0, 100, 10);
  EXPECT_TRUE(frequency.needs_tokens_on_host());
  EXPECT_TRUE(frequency.occurrences().empty());
  for (const int32_t token : {9, 3, 9}) frequency.Commit(token);
  ASSERT_EQ(frequency.occurrences().size(), 2u);
  EXPECT_EQ(frequency.occurrences()[0].token, 3);
  EXPECT_EQ(frequency.occurrences()[1].generated, 2);

  spec.sampling.repetition_penalty = 1.5F;
  Sampler repetition(spec, 0, 100, 10);
  repetition.Commit(3);
  ASSERT_EQ(repetition.occurrences().size(), 2u);
  EXPECT_EQ(repetition.occurrences()[0].token, 3);
  EXPECT_EQ(repetition.occurrences()[0].generated, 1);
  EXPECT_EQ(repetition.occurrences()[1].generated, 0);
}

TEST(Sampler, WithoutASeedEachRequestHasItsOwn) {
  RequestSpec a{.id = 1, .prompt = {1}};
  RequestSpec b{.id = 2, .prompt = {1}};
  EXPECT_NE(Sampler(a, 5, 100, 10).RowFor(0).seed, Sampler(b, 5, 100, 10).RowFor(0).seed);
  EXPECT_NE(Sampler(a, 5, 100, 10).RowFor(0).seed, Sampler(a, 6, 100, 10).RowFor(0).seed);
  a.sampling.seed = b.sampling.seed = 77;
  EXPECT_EQ(Sampler(a, 5, 100, 10).RowFor(3).seed, 77u);
  EXPECT_EQ(Sampler(b, 6, 100, 10).RowFor(3).index, 3u);
}

}  // namespace
}  // namespace fathom::engine
