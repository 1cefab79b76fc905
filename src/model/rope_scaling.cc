#include "model/rope_scaling.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/strings.h"

namespace fathom::model {
namespace {

using ops::RopeScaling;
using ops::RopeSpec;

struct Parameter {
  std::string_view name;
  double min;
  double max;
  bool required;
};

struct Kind {
  std::string_view name;
  RopeScaling scaling;
  std::vector<Parameter> parameters;
};

const std::vector<Kind>& Kinds() {
  constexpr double kMaxFactor = 1e6;
  constexpr double kMaxPosition = 1 << 30;
  static const std::vector<Kind> kKinds = {
      {"none", RopeScaling::kNone, {}},
      {"linear", RopeScaling::kLinear, {{"factor", 1, kMaxFactor, true}}},
      {"dynamic",
       RopeScaling::kDynamic,
       {{"factor", 1, kMaxFactor, true}, {"original", 1, kMaxPosition, false}}},
      {"yarn",
       RopeScaling::kYarn,
       {{"factor", 1, kMaxFactor, true},
        {"original", 1, kMaxPosition, true},
        {"beta_fast", 1e-3, 1e6, false},
        {"beta_slow", 1e-3, 1e6, false},
        {"mscale", 0, 100, false},
        {"mscale_all_dim", 0, 100, false},
        {"attention_factor", 1e-3, 1e3, false}}},
      {"llama3",
       RopeScaling::kLlama3,
       {{"factor", 1, kMaxFactor, true},
        {"original", 1, kMaxPosition, true},
        {"low", 1e-3, 1e6, true},
        {"high", 1e-3, 1e6, true}}}};
  return kKinds;
}

// "factor=2" of `kind`.
Status ParseParameter(const Kind& kind, std::string_view text,
                      std::map<std::string_view, double>& given) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const auto parameter = std::find_if(kind.parameters.begin(), kind.parameters.end(),
                                      [&](const Parameter& p) { return p.name == name; });
  if (parameter == kind.parameters.end()) {
    std::vector<std::string_view> names;
    for (const Parameter& p : kind.parameters) names.push_back(p.name);
    return Err(Code::kInvalidArgument, "--rope-scaling: {} has no parameter '{}'; it has: {}",
               kind.name, name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  const std::string_view digits =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      !(value >= parameter->min && value <= parameter->max)) {
    return Err(Code::kInvalidArgument,
               "--rope-scaling: '{}' is '{}', expected a number in [{}, {}]", name, digits,
               parameter->min, parameter->max);
  }
  if (!given.emplace(name, value).second) {
    return Err(Code::kInvalidArgument, "--rope-scaling: '{}' is given twice", name);
  }
  return {};
}

}  // namespace

std::string Describe(const RopeSpec& rope) {
  const auto kind = std::find_if(Kinds().begin(), Kinds().end(),
                                 [&](const Kind& k) { return k.scaling == rope.scaling; });
  FATHOM_CHECK(kind != Kinds().end());
  std::string text(kind->name);
  if (rope.scaling == RopeScaling::kNone) return text;
  text += fmt::format(", factor {}, original {}", rope.factor, rope.original_positions);
  if (rope.scaling == RopeScaling::kYarn) {
    text += fmt::format(", beta {}/{}, mscale {}/{}", rope.beta_fast, rope.beta_slow,
                        rope.mscale.value_or(1), rope.mscale_all_dim.value_or(0));
    if (rope.attention_factor) text += fmt::format(", attention factor {}", *rope.attention_factor);
    if (!rope.truncate) text += ", ramp not rounded";
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    text += fmt::format(", low {}, high {}", rope.low_freq_factor, rope.high_freq_factor);
  }
  return text;
}

Result<RopeSpec> ParseRopeScaling(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, ',');
  const auto kind = std::find_if(Kinds().begin(), Kinds().end(),
                                 [&](const Kind& k) { return k.name == parts[0]; });
  if (kind == Kinds().end()) {
    return Err(Code::kInvalidArgument,
               "--rope-scaling '{}': expected none, linear, dynamic, yarn or llama3, then "
               "parameters as in yarn,factor=4,original=8192",
               text);
  }
  std::map<std::string_view, double> given;
  for (size_t i = 1; i < parts.size(); ++i) FATHOM_TRY(ParseParameter(*kind, parts[i], given));
  for (const Parameter& parameter : kind->parameters) {
    if (parameter.required && !given.contains(parameter.name)) {
      return Err(Code::kInvalidArgument, "--rope-scaling: {} needs '{}'", kind->name,
                 parameter.name);
    }
  }

  RopeSpec rope;
  rope.scaling = kind->scaling;
  const auto set = [&](std::string_view name, auto& field) {
    if (const auto it = given.find(name); it != given.end()) field = it->second;
  };
  double original = 0;
  set("factor", rope.factor);
  set("original", original);
  set("beta_fast", rope.beta_fast);
  set("beta_slow", rope.beta_slow);
  set("mscale", rope.mscale);
  set("mscale_all_dim", rope.mscale_all_dim);
  set("attention_factor", rope.attention_factor);
  set("low", rope.low_freq_factor);
  set("high", rope.high_freq_factor);
  if (original != std::floor(original)) {
    return Err(Code::kInvalidArgument, "--rope-scaling: 'original' is {}, expected whole tokens",
               original);
  }
  rope.original_positions = static_cast<int64_t>(original);
  if (rope.scaling == RopeScaling::kYarn && rope.beta_fast <= rope.beta_slow) {
    return Err(Code::kInvalidArgument,
               "--rope-scaling: yarn needs beta_fast > beta_slow, found {} and {}", rope.beta_fast,
               rope.beta_slow);
  }
  if (rope.scaling == RopeScaling::kLlama3 && rope.low_freq_factor >= rope.high_freq_factor) {
    return Err(Code::kInvalidArgument, "--rope-scaling: llama3 needs low < high, found {} and {}",
               rope.low_freq_factor, rope.high_freq_factor);
  }
  return rope;
}

}  // namespace fathom::model
