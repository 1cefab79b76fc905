#pragma once
// Inputs whose weights are far apart, in place of random ones: what a kernel that keeps
// probabilities in few bits, or lets their base wait, could get wrong.
//
// Queries are unit vectors along one element, which makes a key's score: its weight, in log2, times
// kWeightsScale and 8.
#include <cstdint>
#include <numbers>

#include "kernels/cuda/host_device.h"

namespace fathom::bench {

//   kSink: the first key outweighs each other by 2^20 to 2^23, but its values are zeros: the others
//   make the output. Float16 probabilities lie 2^7 below 1 at most where the base waits; 2^13 more
//   and they were zeros. kDeepSink: by 2^28 to 2^31, for kernels where they lie 2^15 below. Values
//   of up to kSinkValues keep the output from being too small for float16.
//   kWaiting: in each 512 keys, 64 to 127 outweigh those before by 2^7.75 (a base of exponentials
//   waits for 2^8, over codes for 2^6), 128 to 191 by 2^5.75 more, and so on in turns. Where it is
//   2^5.75 values are 3.875 times larger (the unit of scales waits for 4).
//   kRising: each outweighs the one before. kFalling: the same for kernels that walk from the end
//   in tiles of 128.
//   kSteepRise: each 64 of 1024 outweigh those before by more than any base waits for. kSteepFall:
//   each 128 outweigh those behind, and in each 128 all outweigh the first 32.
enum class Weights : uint8_t {
  kRandom,
  kSink,
  kDeepSink,
  kWaiting,
  kRising,
  kFalling,
  kSteepRise,
  kSteepFall
};

inline constexpr float kSinkValues = 32768;
inline constexpr float kWeightsScale = std::numbers::ln2_v<float> / 8;

FATHOM_HOST_DEVICE inline bool IsSink(Weights weights) {
  return weights == Weights::kSink || weights == Weights::kDeepSink;
}
// What values are at most.
FATHOM_HOST_DEVICE inline float ValueScale(Weights weights) {
  return IsSink(weights) ? kSinkValues : 1;
}

FATHOM_HOST_DEVICE inline float Log2Weight(Weights weights, int key) {
  const float wave = -0.37F * static_cast<float>(key % 8);
  switch (weights) {
    case Weights::kSink:
      return key == 0 ? 20.F : wave;
    case Weights::kDeepSink:
      return key == 0 ? 28.F : wave;
    case Weights::kWaiting:
      return static_cast<float>(key % 512 / 128) * 13.5F + (key % 128 < 64 ? 0.F : 7.75F);
    case Weights::kRising:
      return static_cast<float>(key) * 0.15F;
    case Weights::kFalling:
      return static_cast<float>(key) * -0.075F;
    case Weights::kSteepRise:
      return static_cast<float>(key % 1024 / 64) * 45.F;
    case Weights::kSteepFall:
      return static_cast<float>(key / 128) * -45.F + (key % 128 >= 32 ? 34.F : 0.F);
    case Weights::kRandom:
      break;
  }
  return 0;
}
// Element `at` of a key: exact in bf16 where weights are multiples of a quarter below 64.
FATHOM_HOST_DEVICE inline float KeyElement(Weights weights, int key, int at) {
  return at == 0 ? 8 * Log2Weight(weights, key) : 0;
}

// Of a key's values.
FATHOM_HOST_DEVICE inline float ValueFactor(Weights weights, int key) {
  if (weights == Weights::kRandom) return 1;
  if (weights != Weights::kWaiting) return key == 0 ? 0 : 1;
  return key >= 128 && key % 128 < 64 ? 3.875F : 1;
}

// What fills a plane of a cache: noise, or where a case has weights, keys or values that go with
// them.
struct PlaneFill {
  uint32_t seed = 0;
  Weights weights = Weights::kRandom;
  bool keys = false;
};
// An element is `unit`, in [-1, 1], times `magnitude`, which all that share a scale have in common.
struct FilledElement {
  float unit;
  float magnitude;
};
// `largest`: of codes; 1 where elements are stored as they are. `noise` and, of all that share a
// scale, `shared_noise` are in (-1, 1).
FATHOM_HOST_DEVICE inline FilledElement FillElement(const PlaneFill& fill, float largest, int token,
                                                    int at, float noise, float shared_noise) {
  if (fill.weights == Weights::kRandom) {
    return {noise, largest > 1 ? 1 + 0.5F * shared_noise : 1};
  }
  if (fill.keys) {
    const float element = KeyElement(fill.weights, token, 0);
    const float size = element < 0 ? -element : element;
    const float unit = element < 0 ? -1 : element > 0 ? 1 : 0;
    return {at == 0 ? unit : 0, size == 0 ? 1 : size};
  }
  const float factor = ValueFactor(fill.weights, token);
  if (factor == 0) return {0, 1};
  // A scale is the factor times a power of two.
  return {noise, ValueScale(fill.weights) * factor * (largest > 1 ? largest / 128 : 1)};
}

}  // namespace fathom::bench
