#pragma once
// Typed access to a simdjson document, with errors that say where and what.
#include <simdjson.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace fathom::text {

using JsonElement = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

inline std::string_view JsonTypeName(const JsonElement& element) {
  switch (element.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "true or false";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// The value as T (bool, int64_t, std::string_view, JsonObject, JsonArray); `where` names it.
template <class T>
Result<T> JsonAs(const JsonElement& element, std::string_view where, std::string_view expected) {
  T value;
  if (element.get(value) != simdjson::SUCCESS) {
    return Err(Code::kInvalidArgument, "{}: expected {}, found {}", where, expected,
               JsonTypeName(element));
  }
  return value;
}

inline Result<std::string_view> JsonString(const JsonElement& element, std::string_view where) {
  return JsonAs<std::string_view>(element, where, "a string");
}
inline Result<JsonObject> AsJsonObject(const JsonElement& element, std::string_view where) {
  return JsonAs<JsonObject>(element, where, "an object");
}
inline Result<JsonArray> AsJsonArray(const JsonElement& element, std::string_view where) {
  return JsonAs<JsonArray>(element, where, "an array");
}

// The member of that name; an error where it is missing.
inline Result<JsonElement> JsonMember(const JsonObject& object, std::string_view key,
                                      std::string_view where) {
  JsonElement value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS) {
    return Err(Code::kInvalidArgument, "{}: \"{}\" is missing", where, key);
  }
  return value;
}

// The member of that name; false where it is missing or null.
inline bool JsonOptional(const JsonObject& object, std::string_view key, JsonElement& value) {
  return object.at_key(key).get(value) == simdjson::SUCCESS && !value.is_null();
}

// A flag; `missing` where there is none.
inline Result<bool> JsonFlag(const JsonObject& object, std::string_view key, bool missing,
                             std::string_view where) {
  JsonElement value;
  if (!JsonOptional(object, key, value)) return missing;
  return JsonAs<bool>(value, fmt::format("{}.{}", where, key), "true or false");
}

}  // namespace fathom::text
