#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace fathom::ops {
namespace {

RopeSpec DeepSeekYarn() {
  RopeSpec spec;
  spec.dim = 64;
  spec.scaling = RopeScaling::kYarn;
  spec.factor = 40;
  spec.original_positions = 4096;
  spec.mscale = 1.0;
  spec.mscale_all_dim = 1.0;
  return spec;
}

double Base(const RopeSpec& spec, int i) { return std::pow(spec.theta, -2.0 * i / spec.dim); }

TEST(Rope, NamesRoundTrip) {
  for (const char* name : {"none", "linear", "dynamic", "yarn", "llama3"}) {
    ASSERT_TRUE(RopeScalingFromName(name));
    EXPECT_EQ(NameOf(*RopeScalingFromName(name)), name);
  }
  EXPECT_FALSE(RopeScalingFromName("longrope"));
}

TEST(Rope, LinearDividesAndNoneKeeps) {
  RopeSpec spec;
  spec.dim = 128;
  spec.theta = 5e5;
  const auto plain = RopeInverseFrequencies(spec, 0);
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 4;
  const auto linear = RopeInverseFrequencies(spec, 0);
  for (int i = 0; i < 64; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(plain[at] / Base(spec, i), 1, 1e-6);
    EXPECT_EQ(linear[at], plain[at] / 4);
  }
}

TEST(Rope, DynamicKeepsTheBaseUpToTheOriginalLength) {
  RopeSpec spec;
  spec.dim = 64;
  spec.scaling = RopeScaling::kDynamic;
  spec.factor = 2;
  spec.original_positions = 1000;
  EXPECT_EQ(RopeInverseFrequencies(spec, 10), RopeInverseFrequencies(spec, 1000));
  const auto longer = RopeInverseFrequencies(spec, 3000);
  const double theta = 10000 * std::pow(2.0 * 3 - 1, 64.0 / 62);
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(longer[static_cast<size_t>(i)] / std::pow(theta, -2.0 * i / 64), 1, 1e-6);
  }
}

// The published DeepSeek values: the ramp runs from dimension 10 to 23.
TEST(Rope, YarnOfDeepSeek) {
  const RopeSpec spec = DeepSeekYarn();
  const auto yarn = RopeInverseFrequencies(spec, 0);
  for (int i = 0; i < 32; ++i) {
    const double ramp = std::clamp((i - 10) / 13.0, 0.0, 1.0);
    const double exact = Base(spec, i) * (1 - ramp) + Base(spec, i) / 40 * ramp;
    EXPECT_NEAR(yarn[static_cast<size_t>(i)] / exact, 1, 1e-6) << i;
  }
  EXPECT_EQ(RopeAttentionFactor(spec), 1);
  EXPECT_NEAR(std::pow(192, -0.5) * YarnSoftmaxFactor(spec), 0.135234, 5e-7);
  RopeSpec v2 = spec;
  v2.mscale = v2.mscale_all_dim = 0.707;
  EXPECT_NEAR(std::pow(192, -0.5) * YarnSoftmaxFactor(v2), 0.114721, 5e-7);
  RopeSpec plain = spec;
  plain.mscale.reset();
  plain.mscale_all_dim.reset();
  EXPECT_NEAR(RopeAttentionFactor(plain), 0.1 * std::log(40.0) + 1, 1e-12);
  EXPECT_EQ(YarnSoftmaxFactor(plain), 1);
}

TEST(Rope, Llama3KeepsShortWavesAndDividesLongOnes) {
  RopeSpec spec;
  spec.dim = 128;
  spec.theta = 5e5;
  spec.scaling = RopeScaling::kLlama3;
  spec.factor = 8;
  spec.original_positions = 8192;
  const auto scaled = RopeInverseFrequencies(spec, 0);
  int kept = 0, divided = 0, between = 0;
  for (int i = 0; i < 64; ++i) {
    const double base = Base(spec, i);
    const double wave = 2 * std::numbers::pi / base;
    const double ratio = scaled[static_cast<size_t>(i)] / base;
    if (wave < 8192.0 / 4) {
      EXPECT_NEAR(ratio, 1, 1e-6);
      ++kept;
    } else if (wave > 8192) {
      EXPECT_NEAR(ratio, 1.0 / 8, 1e-6);
      ++divided;
    } else {
      const double smooth = (8192 / wave - 1) / 3;
      EXPECT_NEAR(ratio, (1 - smooth) / 8 + smooth, 1e-5);
      ++between;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(divided, 20);
  EXPECT_GT(between, 2);
}

TEST(Rope, TablesHoldCosThenSinTimesTheAttentionFactor) {
  RopeTables tables;
  RopeSpec spec = DeepSeekYarn();
  spec.mscale.reset();
  const auto row = tables.Add(spec, 300, 300);
  ASSERT_TRUE(row);
  spec.scaling = RopeScaling::kNone;
  EXPECT_EQ(tables.Add(spec, 10, 10).value(), 1);
  EXPECT_EQ(tables.size(), 2);
  EXPECT_EQ(tables.Bytes(), 310 * 64 * sizeof(float));
  const auto frequencies = RopeInverseFrequencies(DeepSeekYarn(), 0);
  const double factor = 0.1 * std::log(40.0) + 1;
  for (int i = 0; i < 32; ++i) {
    const double angle = 299.0F * frequencies[static_cast<size_t>(i)];
    EXPECT_NEAR(tables.data()[0][299 * 64 + i], std::cos(angle) * factor, 1e-6);
    EXPECT_NEAR(tables.data()[0][299 * 64 + 32 + i], std::sin(angle) * factor, 1e-6);
    EXPECT_EQ(tables.data()[1][i], 1.0F);
  }
  RopeSpec other = spec;
  other.dim = 32;
  EXPECT_FALSE(tables.Add(other, 10, 10)) << "tables of one model share the dimension";
}

TEST(Rope, RefusesWhatHasNoMeaning) {
  RopeSpec good = DeepSeekYarn();
  ASSERT_TRUE(ValidateRope(good));
  const auto refused = [&good](auto change) {
    RopeSpec spec = good;
    change(spec);
    return !ValidateRope(spec).has_value();
  };
  EXPECT_TRUE(refused([](RopeSpec& s) { s.dim = 63; }));
  EXPECT_TRUE(refused([](RopeSpec& s) { s.theta = 0; }));
  EXPECT_TRUE(refused([](RopeSpec& s) { s.factor = 0.5; }));
  EXPECT_TRUE(refused([](RopeSpec& s) { s.factor = std::nan(""); }));
  EXPECT_TRUE(refused([](RopeSpec& s) { s.original_positions = 0; }));
  EXPECT_TRUE(refused([](RopeSpec& s) { s.beta_slow = 64; }));
  good.scaling = RopeScaling::kLlama3;
  EXPECT_TRUE(refused([](RopeSpec& s) { s.high_freq_factor = 1; }));
}

}  // namespace
}  // namespace fathom::ops
