#pragma once
// Errors that come from outside (input, files, configuration, capacity) travel as values. The text
// says what was expected, what was found, where, and what would be legal. Bugs use base/check.h.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace fathom {

enum class Code {
  kInvalidArgument,    // the caller's value is wrong
  kUnsupported,        // a legal value that this build, device or version cannot do
  kNotFound,           // a named file, tensor, model or request does not exist
  kDataLoss,           // truncated or corrupt input
  kOutOfRange,         // a sequence beyond the model's context
  kResourceExhausted,  // memory, pages, queue, disk
  kDeadlineExceeded,
  kCancelled,
  kUnavailable,  // draining, device lost: try elsewhere or later
  kInternal,     // a library failed in a way that is not the caller's doing
};

std::string_view CodeName(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;

  // "kNotFound: message", for logs and tests.
  std::string ToString() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> Err(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Puts a place in front of an error on its way up: "model.safetensors: header length ...".
Error WithContext(Error error, std::string_view where);

}  // namespace fathom

#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)

// Returns the error of a Status or Result from the enclosing function.
#define FATHOM_TRY(expr)                                                            \
  do {                                                                              \
    if (auto fathom_try_result = (expr); !fathom_try_result) {                      \
      return tl::unexpected<::fathom::Error>(std::move(fathom_try_result.error())); \
    }                                                                               \
  } while (0)

// FATHOM_ASSIGN_OR_RETURN(auto x, F()); declares or assigns x from F()'s value, or returns its
// error.
#define FATHOM_ASSIGN_OR_RETURN(lhs, expr) \
  FATHOM_ASSIGN_OR_RETURN_IMPL(FATHOM_CONCAT(fathom_result_, __LINE__), lhs, expr)
#define FATHOM_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)                        \
  auto tmp = (expr);                                                        \
  if (!tmp) return tl::unexpected<::fathom::Error>(std::move(tmp.error())); \
  lhs = std::move(*tmp)
