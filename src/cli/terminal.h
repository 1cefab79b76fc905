#pragma once
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace fathom::cli {

inline bool IsTerminal(int fd) { return isatty(fd) == 1; }

// Cells of a line; 0 when `fd` is no terminal.
inline size_t ColumnsOf(int fd) {
  winsize size{};
  if (!IsTerminal(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

// Escape sequences, empty when standard output is not a terminal.
struct Style {
  std::string_view bold, dim, red, yellow, green, reset;
};
inline Style StyleFor(int fd) {
  if (!IsTerminal(fd)) return {};
  return {"\033[1m", "\033[2m", "\033[31m", "\033[33m", "\033[32m", "\033[0m"};
}

}  // namespace fathom::cli
