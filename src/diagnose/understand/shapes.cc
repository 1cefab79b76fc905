#include "diagnose/understand/shapes.h"

#include <charconv>

namespace fathom::diagnose {
namespace {

int ElementBytes(std::string_view type) {
  struct Type {
    std::string_view name;
    int bytes;
  };
  static constexpr Type kTypes[] = {
      {"c10::BFloat16", 2},
      {"c10::Half", 2},
      {"float", 4},
      {"double", 8},
      {"long int", 8},
      {"long", 8},
      {"int", 4},
      {"bool", 1},
      {"unsigned char", 1},
      {"signed char", 1},
      {"short", 2},
      {"c10::Float8_e4m3fn", 1},
      {"c10::Float8_e5m2", 1},
      {"c10::Float8_e4m3fnuz", 1},
  };
  for (const Type& t : kTypes) {
    if (t.name == type) return t.bytes;
  }
  return 0;
}

// Reads nested lists of integers; anything else inside a list is passed over.
void ReadList(const char*& at, const char* end, std::vector<Shape>& shapes) {
  Shape numbers;
  bool nested = false;
  ++at;  // '['
  while (at < end && *at != ']') {
    if (*at == '[') {
      nested = true;
      ReadList(at, end, shapes);
      continue;
    }
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error == std::errc()) {
      numbers.push_back(value);
      at = next;
    } else {
      ++at;
    }
  }
  if (at < end) ++at;  // ']'
  if (!nested && !numbers.empty()) shapes.push_back(std::move(numbers));
}

}  // namespace

const Shape& Argument::shape() const {
  static const Shape kNoShape;
  return shapes.empty() ? kNoShape : shapes.front();
}

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && n > (int64_t{1} << 50) / extent)) return 0;
    n *= extent;
  }
  return n;
}

std::vector<Argument> ParseArguments(std::string_view dims, std::string_view types) {
  std::vector<Argument> arguments;
  const char* at = dims.data();
  const char* end = at + dims.size();
  if (at < end && *at == '[') ++at;
  while (at < end) {
    if (*at == '[') {
      Argument argument;
      ReadList(at, end, argument.shapes);
      arguments.push_back(std::move(argument));
    } else {
      ++at;
    }
  }
  size_t index = 0;
  for (size_t open = types.find('"'); open != std::string_view::npos && index < arguments.size();
       ++index) {
    const size_t close = types.find('"', open + 1);
    if (close == std::string_view::npos) break;
    arguments[index].element_bytes = ElementBytes(types.substr(open + 1, close - open - 1));
    open = types.find('"', close + 1);
  }
  return arguments;
}

std::vector<Argument> ArgumentsOf(const Timeline& timeline, uint32_t op) {
  if (op == kNone || timeline.slices.category[op] != Category::kCpuOp ||
      timeline.slices.detail[op] == kNone) {
    return {};
  }
  const OpDetail& detail = timeline.ops[timeline.slices.detail[op]];
  return ParseArguments(timeline.Name(detail.input_dims), timeline.Name(detail.input_types));
}

int CollectiveElementBytes(std::string_view dtype) {
  if (dtype == "Long" || dtype == "Double") return 8;
  if (dtype == "Int" || dtype == "Float") return 4;
  if (dtype == "BFloat16" || dtype == "Half" || dtype == "Short") return 2;
  if (dtype == "Byte" || dtype == "Char" || dtype == "Bool" || dtype.starts_with("Float8"))
    return 1;
  return 0;
}

}  // namespace fathom::diagnose
