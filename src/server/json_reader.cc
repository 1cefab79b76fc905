#include "server/json_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "base/strings.h"

namespace fathom::server {
namespace {

using simdjson::dom::element_type;

// A path comes back to the client: keys that are long or odd are cut.
std::string Shown(std::string_view key) {
  constexpr size_t kMax = 64;
  std::string out;
  for (const char c : key.substr(0, kMax)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  while (key.size() > kMax && !out.empty() && (out.back() & 0x80) != 0) out.pop_back();
  if (key.size() > kMax) out += "...";
  return out;
}

std::string Number(double value) { return fmt::format("{:.7g}", value); }

}  // namespace

JsonValue JsonValue::Field(std::string_view key, simdjson::dom::element value) const {
  return {value, path.empty() ? Shown(key) : fmt::format("{}.{}", path, Shown(key))};
}

JsonValue JsonValue::Item(size_t index, simdjson::dom::element value) const {
  return {value, fmt::format("{}[{}]", path, index)};
}

std::string_view TypeName(const simdjson::dom::element& element) {
  switch (element.type()) {
    case element_type::ARRAY:
      return "array";
    case element_type::OBJECT:
      return "object";
    case element_type::INT64:
    case element_type::UINT64:
      return "integer";
    case element_type::DOUBLE:
      return "number";
    case element_type::STRING:
      return "string";
    case element_type::BOOL:
      return "boolean";
    case element_type::NULL_VALUE:
      return "null";
  }
  return "unknown";
}

ApiError InvalidType(const JsonValue& value, std::string_view expected) {
  const bool whole = value.path.empty();
  return {
      .message = fmt::format("{}: expected {}, found {}", whole ? "the request body" : value.path,
                             expected, TypeName(value.element)),
      .param = value.path,
      .code = "invalid_type"};
}

ApiError InvalidValue(const JsonValue& value, std::string message) {
  return {.message = fmt::format("{}: {}", value.path, message),
          .param = value.path,
          .code = "invalid_value"};
}

ApiError Unsupported(const JsonValue& value, std::string message) {
  return {.message = fmt::format("{}: {}", value.path, message),
          .param = value.path,
          .code = "unsupported_parameter"};
}

ApiError UnknownField(const JsonValue& value, std::string_view key,
                      const std::vector<std::string_view>& known) {
  const std::string_view nearest = Nearest(key, known);
  return {
      .message = fmt::format("unknown parameter: {}{}", value.path,
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)),
      .param = value.path,
      .code = "unknown_parameter"};
}

ApiError DuplicateField(const JsonValue& value) {
  return {.message = fmt::format("{}: given twice", value.path),
          .param = value.path,
          .code = "invalid_value"};
}

MaybeError ReadBool(const JsonValue& value, bool* out) {
  if (value.element.get(*out) != simdjson::SUCCESS) return InvalidType(value, "a boolean");
  return std::nullopt;
}

namespace {

ApiError OutOfBounds(const JsonValue& value, int64_t min, int64_t max, std::string_view found) {
  return InvalidValue(value, max == INT64_MAX
                                 ? fmt::format("must be at least {}, is {}", min, found)
                                 : fmt::format("must be {} to {}, is {}", min, max, found));
}

}  // namespace

MaybeError ReadInt(const JsonValue& value, int64_t min, int64_t max, int64_t* out) {
  double number = 0;
  if (value.element.get(number) != simdjson::SUCCESS || std::trunc(number) != number) {
    return InvalidType(value, "an integer");
  }
  constexpr double kInt64Limit = 9.2e18;  // inside it the cast is defined; 5.0 is an integer too
  if (value.element.get(*out) != simdjson::SUCCESS && std::abs(number) < kInt64Limit) {
    *out = static_cast<int64_t>(number);
  } else if (std::abs(number) >= kInt64Limit && !value.element.is_int64()) {
    return OutOfBounds(value, min, max, Number(number));
  }
  if (*out >= min && *out <= max) return std::nullopt;
  return OutOfBounds(value, min, max, fmt::to_string(*out));
}

MaybeError ReadInt32(const JsonValue& value, int32_t min, int32_t max, int32_t* out) {
  int64_t wide = 0;
  if (MaybeError error = ReadInt(value, min, max, &wide)) return error;
  *out = static_cast<int32_t>(wide);
  return std::nullopt;
}

MaybeError ReadFloat(const JsonValue& value, double min, double max, bool min_open, float* out) {
  double number = 0;
  if (value.element.get(number) != simdjson::SUCCESS) return InvalidType(value, "a number");
  if (number > max || number < min || (min_open && number == min)) {
    return InvalidValue(value, fmt::format("must be {} {} and at most {}, is {}",
                                           min_open ? "more than" : "at least", Number(min),
                                           Number(max), Number(number)));
  }
  *out = static_cast<float>(number);
  return std::nullopt;
}

MaybeError ReadString(const JsonValue& value, std::string* out) {
  std::string_view text;
  if (value.element.get(text) != simdjson::SUCCESS) return InvalidType(value, "a string");
  out->assign(text);
  return std::nullopt;
}

MaybeError ReadTokenIds(const JsonValue& value, int32_t vocab_size, std::vector<int32_t>* out) {
  return ForEachItem(value, [&](const JsonValue& item) {
    int32_t id = 0;
    MaybeError error = ReadInt32(item, 0, vocab_size - 1, &id);
    if (!error) out->push_back(id);
    return error;
  });
}

}  // namespace fathom::server
