#pragma once
// Typed reading of a parsed JSON document, with OpenAI-shaped errors that name the path of the
// value. A reading function returns the error, or nothing when all went well.
#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai_types.h"

namespace fathom::server {

using MaybeError = std::optional<ApiError>;

struct JsonValue {
  simdjson::dom::element element;
  std::string path;  // "messages[2].content"

  bool is_null() const { return element.is_null(); }
  JsonValue Field(std::string_view key, simdjson::dom::element value) const;
  JsonValue Item(size_t index, simdjson::dom::element value) const;
};

// "string", "integer", "number", "boolean", "array", "object", "null".
std::string_view TypeName(const simdjson::dom::element& element);

ApiError InvalidType(const JsonValue& value, std::string_view expected);
ApiError InvalidValue(const JsonValue& value, std::string message);
ApiError Unsupported(const JsonValue& value, std::string message);

MaybeError ReadBool(const JsonValue& value, bool* out);
MaybeError ReadInt(const JsonValue& value, int64_t min, int64_t max, int64_t* out);
MaybeError ReadInt32(const JsonValue& value, int32_t min, int32_t max, int32_t* out);
// min <= number <= max, or min < number when `min_open`.
MaybeError ReadFloat(const JsonValue& value, double min, double max, bool min_open, float* out);
MaybeError ReadString(const JsonValue& value, std::string* out);
MaybeError ReadTokenIds(const JsonValue& value, int32_t vocab_size, std::vector<int32_t>* out);

// Calls handle(JsonValue) for every entry of an array or object value.
template <class Handle>
MaybeError ForEachItem(const JsonValue& value, Handle handle) {
  simdjson::dom::array array;
  if (value.element.get(array) != simdjson::SUCCESS) return InvalidType(value, "an array");
  size_t index = 0;
  for (const simdjson::dom::element item : array) {
    if (MaybeError error = handle(value.Item(index++, item))) return error;
  }
  return std::nullopt;
}

template <class State>
struct FieldHandler {
  std::string_view name;
  MaybeError (*read)(const JsonValue& value, State& state);
};

// The fields of one object type, in one list: what is parsed, what is suggested for a misspelling.
template <class State>
MaybeError ReadObject(const JsonValue& value, const std::vector<FieldHandler<State>>& fields,
                      State& state);

ApiError UnknownField(const JsonValue& value, std::string_view key,
                      const std::vector<std::string_view>& known);
ApiError DuplicateField(const JsonValue& value);

template <class State>
MaybeError ReadObject(const JsonValue& value, const std::vector<FieldHandler<State>>& fields,
                      State& state) {
  simdjson::dom::object object;
  if (value.element.get(object) != simdjson::SUCCESS) return InvalidType(value, "an object");
  std::vector<bool> seen(fields.size(), false);
  for (const auto& [key, element] : object) {
    const JsonValue field = value.Field(key, element);
    size_t i = 0;
    while (i < fields.size() && fields[i].name != key) ++i;
    if (i == fields.size()) {
      std::vector<std::string_view> known;
      for (const auto& f : fields) known.push_back(f.name);
      return UnknownField(field, key, known);
    }
    if (seen[i]) return DuplicateField(field);
    seen[i] = true;
    if (field.is_null()) continue;
    if (MaybeError error = fields[i].read(field, state)) return error;
  }
  return std::nullopt;
}

}  // namespace fathom::server
