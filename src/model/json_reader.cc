#include "model/json_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace fathom::model {
namespace {

constexpr size_t kShownBytes = 80;

// A value as the file spells it, cut to a length that a message can carry.
std::string Shown(const simdjson::dom::element& value) {
  std::string text = simdjson::minify(value);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

}  // namespace

JsonReader::JsonReader(std::string where, simdjson::dom::object object) : where_(std::move(where)) {
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, value] : object) {
    if (!seen.insert(key).second) {
      Fail(Error{Code::kDataLoss, fmt::format("{}: key '{}' appears twice", where_, key)});
    }
    fields_.push_back({key, value});
  }
}

const JsonReader::Field* JsonReader::Find(std::string_view key) const {
  for (const Field& field : fields_) {
    if (field.key == key) return field.value.is_null() ? nullptr : &field;
  }
  return nullptr;
}

JsonReader::Field* JsonReader::Take(std::string_view key) {
  for (Field& field : fields_) {
    if (field.key != key) continue;
    field.used = true;
    return field.value.is_null() ? nullptr : &field;
  }
  return nullptr;
}

JsonReader::Field* JsonReader::Require(std::string_view key) {
  Field* field = Take(key);
  if (field == nullptr) {
    Fail(Error{
        Code::kInvalidArgument,
        fmt::format("{}: '{}' is missing, and nothing else says what it should be", where_, key)});
  }
  return field;
}

void JsonReader::Fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void JsonReader::Wrong(std::string_view key, const Field& field, std::string_view expected) {
  Fail(Error{Code::kInvalidArgument, fmt::format("{}: '{}' is {}, expected {}", where_, key,
                                                 Shown(field.value), expected)});
}

int64_t JsonReader::IntOf(const Field& field, int64_t min, int64_t max) {
  int64_t value = 0;
  double number = 0;
  if (field.value.get_int64().get(value) != simdjson::SUCCESS) {
    // Some writers print whole numbers as 64.0.
    constexpr double kExact = 9007199254740992.0;
    if (field.value.get_double().get(number) == simdjson::SUCCESS && std::trunc(number) == number &&
        std::fabs(number) <= kExact) {
      value = static_cast<int64_t>(number);
    } else {
      Wrong(field.key, field, fmt::format("a whole number in [{}, {}]", min, max));
      return min;
    }
  }
  if (value < min || value > max) {
    Wrong(field.key, field, fmt::format("a whole number in [{}, {}]", min, max));
    return min;
  }
  return value;
}

double JsonReader::NumberOf(const Field& field, double min, double max) {
  double value = 0;
  if (field.value.get_double().get(value) != simdjson::SUCCESS || !(value >= min && value <= max)) {
    Wrong(field.key, field, fmt::format("a number in [{}, {}]", min, max));
    return min;
  }
  return value;
}

int64_t JsonReader::Int(std::string_view key, int64_t min, int64_t max) {
  const Field* field = Require(key);
  return field == nullptr ? min : IntOf(*field, min, max);
}

double JsonReader::Number(std::string_view key, double min, double max) {
  const Field* field = Require(key);
  return field == nullptr ? min : NumberOf(*field, min, max);
}

bool JsonReader::Bool(std::string_view key) {
  return Require(key) == nullptr ? false : OptionalBool(key).value_or(false);
}

std::string JsonReader::String(std::string_view key) {
  return Require(key) == nullptr ? std::string() : OptionalString(key).value_or("");
}

size_t JsonReader::OneOf(std::string_view key, std::span<const std::string_view> legal) {
  const Field* field = Require(key);
  if (field == nullptr) return 0;
  std::string_view value;
  if (field->value.get_string().get(value) == simdjson::SUCCESS) {
    const auto it = std::find(legal.begin(), legal.end(), value);
    if (it != legal.end()) return static_cast<size_t>(it - legal.begin());
  }
  Fail(Error{Code::kUnsupported, fmt::format("{}: '{}' is {}, supported: {}", where_, key,
                                             Shown(field->value), fmt::join(legal, ", "))});
  return 0;
}

std::optional<int64_t> JsonReader::OptionalInt(std::string_view key, int64_t min, int64_t max) {
  const Field* field = Take(key);
  if (field == nullptr) return std::nullopt;
  return IntOf(*field, min, max);
}

std::optional<double> JsonReader::OptionalNumber(std::string_view key, double min, double max) {
  const Field* field = Take(key);
  if (field == nullptr) return std::nullopt;
  return NumberOf(*field, min, max);
}

std::optional<bool> JsonReader::OptionalBool(std::string_view key) {
  const Field* field = Take(key);
  if (field == nullptr) return std::nullopt;
  bool value = false;
  if (field->value.get_bool().get(value) != simdjson::SUCCESS) Wrong(key, *field, "true or false");
  return value;
}

std::optional<std::string> JsonReader::OptionalString(std::string_view key) {
  const Field* field = Take(key);
  if (field == nullptr) return std::nullopt;
  std::string_view value;
  if (field->value.get_string().get(value) != simdjson::SUCCESS) Wrong(key, *field, "a string");
  return std::string(value);
}

std::vector<std::string> JsonReader::OptionalStrings(std::string_view key) {
  std::vector<std::string> values;
  const Field* field = Take(key);
  if (field == nullptr) return values;
  simdjson::dom::array array;
  if (field->value.get_array().get(array) != simdjson::SUCCESS) {
    Wrong(key, *field, "an array of strings");
    return values;
  }
  for (const simdjson::dom::element& item : array) {
    std::string_view value;
    if (item.get_string().get(value) != simdjson::SUCCESS) {
      Wrong(key, *field, "an array of strings");
      return {};
    }
    values.emplace_back(value);
  }
  return values;
}

std::vector<int64_t> JsonReader::OptionalInts(std::string_view key, int64_t min, int64_t max) {
  const Field* field = Take(key);
  if (field == nullptr) return {};
  simdjson::dom::array array;
  if (field->value.get_array().get(array) != simdjson::SUCCESS) return {IntOf(*field, min, max)};
  std::vector<int64_t> values;
  for (const simdjson::dom::element& item : array) {
    values.push_back(IntOf(Field{field->key, item}, min, max));
  }
  return values;
}

std::optional<simdjson::dom::object> JsonReader::OptionalObject(std::string_view key) {
  const Field* field = Take(key);
  if (field == nullptr) return std::nullopt;
  simdjson::dom::object object;
  if (field->value.get_object().get(object) != simdjson::SUCCESS) {
    Wrong(key, *field, "an object");
    return std::nullopt;
  }
  return object;
}

void JsonReader::MustBe(std::string_view key, bool value, std::string_view why) {
  const std::optional<bool> found = OptionalBool(key);
  if (found && *found != value) {
    Fail(Error{Code::kUnsupported,
               fmt::format("{}: '{}' is {}, supported: {} ({})", where_, key, *found, value, why)});
  }
}

void JsonReader::MustBe(std::string_view key, int64_t value, std::string_view why) {
  const std::optional<int64_t> found = OptionalInt(key, INT64_MIN, INT64_MAX);
  if (found && *found != value) {
    Fail(Error{Code::kUnsupported,
               fmt::format("{}: '{}' is {}, supported: {} ({})", where_, key, *found, value, why)});
  }
}

Status JsonReader::Finish(std::span<const std::string_view> ignored) {
  if (error_) return tl::unexpected<Error>(*error_);
  std::vector<std::string_view> unknown;
  for (const Field& field : fields_) {
    if (!field.used && std::find(ignored.begin(), ignored.end(), field.key) == ignored.end()) {
      unknown.push_back(field.key);
    }
  }
  if (unknown.empty()) return {};
  return Err(Code::kUnsupported,
             "{}: unknown key{} {}: it may change what the model computes, so it is not ignored",
             where_, unknown.size() == 1 ? "" : "s", fmt::join(unknown, ", "));
}

Result<simdjson::dom::object> ParseJsonObject(simdjson::dom::parser& parser, std::string_view text,
                                              std::string_view where) {
  // Also because an empty mapping has no address to copy from.
  if (text.empty()) return Err(Code::kDataLoss, "{}: expected a JSON object, found nothing", where);
  simdjson::dom::element root;
  const auto error = parser.parse(text.data(), text.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return Err(Code::kDataLoss, "{}: not valid JSON: {}", where, simdjson::error_message(error));
  }
  simdjson::dom::object object;
  if (root.get_object().get(object) != simdjson::SUCCESS) {
    return Err(Code::kDataLoss, "{}: expected a JSON object", where);
  }
  return object;
}

}  // namespace fathom::model
