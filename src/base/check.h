#pragma once
// Bugs abort with file, line and a message; they are never the way to report bad input.
#include <fmt/format.h>

namespace fathom {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace fathom

#define FATHOM_CHECK(condition, ...)                                                        \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::fathom::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                       \
  } while (0)

#ifdef NDEBUG
#define FATHOM_DCHECK(condition, ...) \
  do {                                \
  } while (false && (condition))
#else
#define FATHOM_DCHECK(condition, ...) FATHOM_CHECK(condition, __VA_ARGS__)
#endif
