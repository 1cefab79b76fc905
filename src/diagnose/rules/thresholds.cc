#include "diagnose/rules/thresholds.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "diagnose/embedded.h"

namespace fathom::diagnose {
namespace {

Status SetValue(const nlohmann::json& value, Threshold& t) {
  if (!value.is_number()) {
    return Err(Code::kInvalidArgument,
               "thresholds: {}: expected a number or {{\"value\": number, \"enabled\": bool}}",
               t.name);
  }
  const double number = value;
  if (number < t.least || number > t.most || (t.whole && number != std::floor(number))) {
    return Err(Code::kInvalidArgument, "thresholds: {}: expected {} from {} to {} ({}), found {}",
               t.name, t.whole ? "a whole number" : "a number", t.least, t.most, t.unit, number);
  }
  t.value = number;
  return {};
}

Status SetEnabled(const nlohmann::json& value, Threshold& t) {
  if (!value.is_boolean()) {
    return Err(Code::kInvalidArgument, "thresholds: {}: enabled: expected true or false, found {}",
               t.name, value.dump());
  }
  if (!t.handbook) {
    return Err(
        Code::kInvalidArgument,
        "thresholds: {}: enabled: expected of limits of the handbook only; this one is always "
        "in force: set its value, legal from {} to {}",
        t.name, t.least, t.most);
  }
  if (t.reference && value) {
    return Err(Code::kInvalidArgument,
               "thresholds: {}: enabled: the figure is for reference ({}): no artifact can be held "
               "against it",
               t.name, t.verdict);
  }
  t.enabled = value;
  return {};
}

// number, or {"value": number, "enabled": bool}
Status Change(const nlohmann::json& change, Threshold& t) {
  if (!change.is_object()) {
    FATHOM_TRY(SetValue(change, t));
    t.enabled = !t.reference;
    return {};
  }
  for (const auto& [key, value] : change.items()) {
    if (key == "value") {
      FATHOM_TRY(SetValue(value, t));
    } else if (key == "enabled") {
      FATHOM_TRY(SetEnabled(value, t));
    } else {
      return Err(Code::kInvalidArgument,
                 "thresholds: {}: unknown key '{}'; expected value or enabled", t.name, key);
    }
  }
  return {};
}

}  // namespace

Result<Thresholds> Thresholds::Parse(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  FATHOM_CHECK(!parsed.is_discarded(), "the shipped thresholds are not JSON");
  Thresholds thresholds;
  for (const auto& entry : parsed.at("thresholds")) {
    Threshold t;
    t.name = entry.at("name");
    t.value = t.default_value = entry.at("value");
    t.unit = entry.at("unit");
    t.source = entry.at("source");
    t.counter_example = entry.at("counter_example");
    t.least = entry.at("range").at(0);
    t.most = entry.at("range").at(1);
    t.whole = entry.value("whole", false);
    t.handbook = entry.value("handbook", false);
    t.reference = entry.value("reference", false);
    t.enabled = entry.value("enabled", !t.reference);
    t.verdict = entry.value("verdict", "");
    thresholds.all_.emplace(t.name, t);
  }
  return thresholds;
}

const Thresholds& Thresholds::Default() {
  static const Thresholds kDefault = *Parse(embedded::kThresholds);
  return kDefault;
}

Result<Thresholds> Thresholds::FromJson(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return Err(Code::kInvalidArgument,
               "thresholds: expected a JSON object such as {{\"kv-copy.warn_share\": 0.05}}");
  }
  Thresholds thresholds = Default();
  for (const auto& [name, value] : parsed.items()) {
    const auto it = thresholds.all_.find(name);
    if (it == thresholds.all_.end()) {
      std::vector<std::string_view> known;
      for (const auto& [key, unused] : thresholds.all_) known.push_back(key);
      const std::string_view nearest = Nearest(name, known);
      return Err(Code::kInvalidArgument, "thresholds: unknown name '{}'{}", name,
                 nearest.empty() ? "; fathom diagnose --explain ID lists a rule's"
                                 : fmt::format(" (did you mean '{}'?)", nearest));
    }
    FATHOM_TRY(Change(value, it->second));
  }
  FATHOM_TRY(thresholds.CheckOrder());
  return thresholds;
}

Status Thresholds::CheckOrder() const {
  for (const auto& [name, first] : all_) {
    for (const auto& [word, other] : {std::pair("warn", "severe"), std::pair("fast", "slow")}) {
      const size_t at = name.find(word);
      if (at == std::string::npos) continue;
      const auto it = all_.find(std::string(name).replace(at, std::strlen(word), other));
      if (it == all_.end()) continue;
      const Threshold& second = it->second;
      // Shares of a roof warn from above: the shipped values tell which way it goes.
      const bool rising = first.default_value < second.default_value;
      if (rising ? first.value > second.value : first.value < second.value) {
        return Err(
            Code::kInvalidArgument,
            "thresholds: {} is {} and {} is {}: expected the first to be {} the second or equal",
            name, first.value, second.name, second.value, rising ? "below" : "above");
      }
    }
  }
  return {};
}

const Threshold& Thresholds::Get(std::string_view name) const {
  const auto it = all_.find(name);
  FATHOM_CHECK(it != all_.end(), "no threshold named {}", name);
  return it->second;
}

UsedThreshold Thresholds::Used(std::string_view name) const {
  const Threshold& t = Get(name);
  return {.name = t.name,
          .value = t.value,
          .default_value = t.default_value,
          .unit = t.unit,
          .source = t.source,
          .counter_example = t.counter_example};
}

}  // namespace fathom::diagnose
