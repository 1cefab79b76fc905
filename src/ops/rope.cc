#include "ops/rope.h"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace fathom::ops {
namespace {

constexpr std::array kNames = {
    std::pair{RopeScaling::kNone, "none"}, std::pair{RopeScaling::kLinear, "linear"},
    std::pair{RopeScaling::kDynamic, "dynamic"}, std::pair{RopeScaling::kYarn, "yarn"},
    std::pair{RopeScaling::kLlama3, "llama3"}};

double YarnMscale(double factor, double s) {
  return factor <= 1 ? 1 : 0.1 * s * std::log(factor) + 1;
}

// Where the ramp between kept and interpolated frequencies begins and ends, in dimension pairs.
std::pair<double, double> YarnRange(const RopeSpec& spec) {
  const auto dimension = [&spec](double rotations) {
    return spec.dim *
           std::log(static_cast<double>(spec.original_positions) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  double low = dimension(spec.beta_fast);
  double high = dimension(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  return {std::max(low, 0.0), std::min(high, static_cast<double>(spec.dim - 1))};
}

}  // namespace

std::string_view NameOf(RopeScaling scaling) {
  for (const auto& [value, name] : kNames) {
    if (value == scaling) return name;
  }
  return "unknown";
}

std::optional<RopeScaling> RopeScalingFromName(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (name == known) return value;
  }
  return std::nullopt;
}

std::vector<float> RopeInverseFrequencies(const RopeSpec& spec, int64_t length) {
  double theta = spec.theta;
  const double dim = spec.dim;
  if (spec.scaling == RopeScaling::kDynamic) {
    const double ratio = static_cast<double>(std::max(length, spec.original_positions)) /
                         static_cast<double>(spec.original_positions);
    theta *= std::pow(spec.factor * ratio - (spec.factor - 1), dim / (dim - 2));
  }
  std::vector<float> frequencies(static_cast<size_t>(spec.dim / 2));
  for (int32_t i = 0; i < spec.dim / 2; ++i) {
    // The exponent and the power are f32 values in the reference.
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(spec.dim);
    const auto power = static_cast<float>(std::pow(theta, double{exponent}));
    frequencies[static_cast<size_t>(i)] = 1.0F / power;
  }
  const auto factor = static_cast<float>(spec.factor);
  if (spec.scaling == RopeScaling::kLinear) {
    for (float& f : frequencies) f /= factor;
  } else if (spec.scaling == RopeScaling::kYarn) {
    auto [low, high] = YarnRange(spec);
    if (low == high) high += 0.001;  // no division by zero: the ramp becomes a step
    for (int32_t i = 0; i < spec.dim / 2; ++i) {
      float& f = frequencies[static_cast<size_t>(i)];
      const auto ramp = static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
      const float keep = 1.0F - ramp;
      f = f / factor * (1.0F - keep) + f * keep;
    }
  } else if (spec.scaling == RopeScaling::kLlama3) {
    const auto original = static_cast<double>(spec.original_positions);
    const double longest = original / spec.low_freq_factor;
    const double shortest = original / spec.high_freq_factor;
    for (float& f : frequencies) {
      const double wavelength = 2 * std::numbers::pi / double{f};
      if (wavelength > longest) {
        f /= factor;
      } else if (wavelength >= shortest) {
        const auto smooth = static_cast<float>((original / wavelength - spec.low_freq_factor) /
                                               (spec.high_freq_factor - spec.low_freq_factor));
        f = (1.0F - smooth) * f / factor + smooth * f;
      }
    }
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeSpec& spec) {
  if (spec.scaling != RopeScaling::kYarn) return 1;
  if (spec.attention_factor) return *spec.attention_factor;
  if (spec.mscale && spec.mscale_all_dim && *spec.mscale != 0 && *spec.mscale_all_dim != 0) {
    return YarnMscale(spec.factor, *spec.mscale) / YarnMscale(spec.factor, *spec.mscale_all_dim);
  }
  return YarnMscale(spec.factor, 1);
}

double YarnSoftmaxFactor(const RopeSpec& spec) {
  if (spec.scaling != RopeScaling::kYarn || spec.mscale_all_dim.value_or(0) == 0) return 1;
  const double m = YarnMscale(spec.factor, *spec.mscale_all_dim);
  return m * m;
}

Status ValidateRope(const RopeSpec& spec) {
  if (spec.dim < 2 || spec.dim % 2 != 0) {
    return Err(Code::kInvalidArgument, "RoPE dimension {}: expected a positive even number",
               spec.dim);
  }
  if (!(spec.theta > 1) || !std::isfinite(spec.theta)) {
    return Err(Code::kInvalidArgument, "rope_theta {}: expected a number above 1", spec.theta);
  }
  if (spec.scaling == RopeScaling::kNone) return {};
  const std::string_view name = NameOf(spec.scaling);
  if (!(spec.factor >= 1) || !std::isfinite(spec.factor)) {
    return Err(Code::kInvalidArgument, "RoPE scaling {} with factor {}: expected a number >= 1",
               name, spec.factor);
  }
  if (spec.scaling == RopeScaling::kLinear) return {};
  if (spec.original_positions < 1) {
    return Err(Code::kInvalidArgument,
               "RoPE scaling {} needs original_max_position_embeddings >= 1, found {}", name,
               spec.original_positions);
  }
  if (spec.scaling == RopeScaling::kDynamic && spec.dim < 4) {
    return Err(Code::kInvalidArgument, "RoPE scaling dynamic needs a dimension >= 4, found {}",
               spec.dim);
  }
  if (spec.scaling == RopeScaling::kYarn &&
      !(spec.beta_slow > 0 && spec.beta_fast >= spec.beta_slow)) {
    return Err(Code::kInvalidArgument,
               "RoPE scaling yarn with beta_fast {} and beta_slow {}: expected fast >= slow > 0",
               spec.beta_fast, spec.beta_slow);
  }
  if (spec.scaling == RopeScaling::kLlama3 &&
      !(spec.low_freq_factor > 0 && spec.high_freq_factor > spec.low_freq_factor)) {
    return Err(Code::kInvalidArgument,
               "RoPE scaling llama3 with low_freq_factor {} and high_freq_factor {}: expected "
               "high > low > 0",
               spec.low_freq_factor, spec.high_freq_factor);
  }
  return {};
}

Result<int32_t> RopeTables::Add(const RopeSpec& spec, int64_t positions, int64_t length) {
  FATHOM_TRY(ValidateRope(spec));
  if (positions < 1 || positions > (int64_t{1} << 26)) {
    return Err(Code::kInvalidArgument, "RoPE table of {} positions: expected 1 to {}", positions,
               int64_t{1} << 26);
  }
  if (!tables_.empty() && spec.dim != dim_) {
    return Err(Code::kInvalidArgument, "RoPE table of dimension {} beside tables of {}", spec.dim,
               dim_);
  }
  dim_ = spec.dim;
  const std::vector<float> frequencies = RopeInverseFrequencies(spec, length);
  const double factor = RopeAttentionFactor(spec);
  const int64_t half = dim_ / 2;
  auto table = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(positions * dim_));
  for (int64_t position = 0; position < positions; ++position) {
    float* row = table.get() + position * dim_;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(double{angle}) * factor);
      row[half + i] = static_cast<float>(std::sin(double{angle}) * factor);
    }
  }
  pointers_.push_back(table.get());
  tables_.push_back(std::move(table));
  positions_.push_back(positions);
  return size() - 1;
}

size_t RopeTables::Bytes() const {
  size_t bytes = 0;
  for (const int64_t positions : positions_) bytes += BytesFor(dim_, positions);
  return bytes;
}

}  // namespace fathom::ops
