#pragma once
// Reads a JSON object of a model file field by field. The first problem is kept and every later
// read returns a harmless value, so that a parser is a list of fields followed by one Finish().
// Finish also refuses keys that nobody asked for: a key that this program does not know may change
// what the model computes.
#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::model {

class JsonReader {
 public:
  // `where` starts every message: "config.json" or "config.json: rope_scaling". Duplicate keys are
  // an error. A key whose value is null counts as absent.
  JsonReader(std::string where, simdjson::dom::object object);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Required: absence is an error that says so.
  int64_t Int(std::string_view key, int64_t min, int64_t max);
  double Number(std::string_view key, double min, double max);
  bool Bool(std::string_view key);
  std::string String(std::string_view key);
  // One of `legal`, by index.
  size_t OneOf(std::string_view key, std::span<const std::string_view> legal);

  // Absent gives nullopt; present but wrong is an error.
  std::optional<int64_t> OptionalInt(std::string_view key, int64_t min, int64_t max);
  std::optional<double> OptionalNumber(std::string_view key, double min, double max);
  std::optional<bool> OptionalBool(std::string_view key);
  std::optional<std::string> OptionalString(std::string_view key);
  std::vector<std::string> OptionalStrings(std::string_view key);  // an array of strings
  // A number or an array of numbers.
  std::vector<int64_t> OptionalInts(std::string_view key, int64_t min, int64_t max);
  std::optional<simdjson::dom::object> OptionalObject(std::string_view key);

  // A field that may only have the value that changes nothing, when it is there at all.
  void MustBe(std::string_view key, bool value, std::string_view why);
  void MustBe(std::string_view key, int64_t value, std::string_view why);

  // Keeps the first error.
  void Fail(Error error);
  bool ok() const { return !error_.has_value(); }
  const std::string& where() const { return where_; }

  // The first error, or one for the first key that was neither read nor in `ignored`.
  Status Finish(std::span<const std::string_view> ignored);

 private:
  struct Field {
    std::string_view key;
    simdjson::dom::element value;
    bool used = false;
  };
  const Field* Find(std::string_view key) const;
  Field* Take(std::string_view key);  // marks it used; null when absent or null
  Field* Require(std::string_view key);
  void Wrong(std::string_view key, const Field& field, std::string_view expected);
  int64_t IntOf(const Field& field, int64_t min, int64_t max);
  double NumberOf(const Field& field, double min, double max);

  std::string where_;
  std::vector<Field> fields_;
  std::optional<Error> error_;
};

// The root object of a JSON text; the parser owns what the object refers to.
Result<simdjson::dom::object> ParseJsonObject(simdjson::dom::parser& parser, std::string_view text,
                                              std::string_view where);

}  // namespace fathom::model
