#pragma once
// One list of fields a configuration struct drives its options, its help, its printing and its
// JSON:
//
//   template <class V> void VisitFields(V& visit, ServeOptions& o) {
//     visit("port", o.port, "TCP port; 0 picks a free one");
//   }
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

namespace fathom::cli {

// Says what is legal where CLI11 would only say that it cannot convert the text.
template <std::integral T>
CLI::Validator WholeNumber(T least = std::numeric_limits<T>::min(),
                           T most = std::numeric_limits<T>::max()) {
  const auto check = [least, most](const std::string& text) -> std::string {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= least && value <= most) return "";
    if (std::signed_integral<T> && least == std::numeric_limits<T>::min()) {
      return text + ": expected a whole number";  // whose range its use knows
    }
    return fmt::format("{}: expected a whole number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "");
}

class OptionBinder {
 public:
  explicit OptionBinder(CLI::App& app) : app_(app) {}
  template <class T>
  void operator()(const char* name, T& field, const char* help) {
    const std::string flag = std::string("--") + name;
    if constexpr (std::is_same_v<T, bool>) {
      app_.add_flag(flag + ",!--no-" + name, field, help)->capture_default_str();
    } else {
      CLI::Option* option = app_.add_option(flag, field, help)->capture_default_str();
      if constexpr (std::integral<T>) option->check(WholeNumber<T>());
      if constexpr (requires { field.push_back({}); } && !std::is_same_v<T, std::string>) {
        option->allow_extra_args(false);  // one value an occurrence: a positional may follow
      }
    }
  }

 private:
  CLI::App& app_;
};

class JsonFields {
 public:
  template <class T>
  void operator()(const char* name, const T& field, const char*) {
    json[name] = field;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
};

// Adds an option for each field of `options`, which must outlive the parse.
template <class Options>
void BindFields(CLI::App& app, Options& options) {
  OptionBinder binder(app);
  VisitFields(binder, options);
}

template <class Options>
nlohmann::ordered_json FieldsToJson(Options options) {
  JsonFields visitor;
  VisitFields(visitor, options);
  return visitor.json;
}

}  // namespace fathom::cli
