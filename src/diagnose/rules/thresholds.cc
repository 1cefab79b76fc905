#include "diagnose/rules/thresholds.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/strings.h"
#include "diagnose/embedded.h"

namespace fathom::diagnose {

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
    t.handbook = entry.value("handbook", false);
    t.enabled = entry.value("enabled", true);
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
    Threshold& t = it->second;
    if (value.is_number()) {
      t.value = value;
      t.enabled = true;
    } else if (value.is_object() && (!value.contains("value") || value["value"].is_number()) &&
               (!value.contains("enabled") || value["enabled"].is_boolean())) {
      for (const auto& [key, unused] : value.items()) {
        if (key != "value" && key != "enabled") {
          return Err(Code::kInvalidArgument,
                     "thresholds: {}: unknown key '{}'; expected value or enabled", name, key);
        }
      }
      t.value = value.value("value", t.value);
      t.enabled = value.value("enabled", t.enabled);
    } else {
      return Err(Code::kInvalidArgument,
                 "thresholds: {}: expected a number or {{\"value\": number, \"enabled\": bool}}",
                 name);
    }
  }
  return thresholds;
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
