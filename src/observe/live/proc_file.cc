#include "observe/live/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>

#include "base/strings.h"

namespace fathom::observe {
namespace {

thread_local std::array<char, 1 << 16> t_buffer;

// Longer lists than this many ids are no list of CPUs.
constexpr int kMostIds = 1 << 16;

}  // namespace

std::string_view ReadProcFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  size_t size = 0;
  while (size < t_buffer.size()) {
    const ssize_t n = read(fd, t_buffer.data() + size, t_buffer.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  close(fd);
  return {t_buffer.data(), size};
}

std::optional<double> NumberAfter(std::string_view text, std::string_view key) {
  size_t at = 0;
  while ((at = text.find(key, at)) != std::string_view::npos) {
    const bool line_start = at == 0 || text[at - 1] == '\n';
    at += key.size();
    if (!line_start || at >= text.size() || (text[at] != ' ' && text[at] != '\t')) continue;
    at = text.find_first_not_of(" \t", at);
    if (at == std::string_view::npos) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    if (error == std::errc()) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

ProcStat::ProcStat(std::string_view text) {
  // The command is in parentheses and may hold spaces: fields are counted from the last ')'.
  const size_t close = text.rfind(')');
  if (close == std::string_view::npos || close + 2 > text.size()) return;
  fields_ = Split(text.substr(close + 2), ' ');
}

double ProcStat::field(size_t number) const {
  double value = 0;
  if (number - 3 < fields_.size()) {
    const std::string_view word = fields_[number - 3];
    std::from_chars(word.data(), word.data() + word.size(), value);
  }
  return value;
}

std::vector<int> ParseIdList(std::string_view text) {
  std::vector<int> ids;
  for (const std::string_view part : Split(Trim(text), ',')) {
    int first = 0;
    const char* const end = part.data() + part.size();
    const auto [after, error] = std::from_chars(part.data(), end, first);
    if (error != std::errc() || first < 0 || first >= kMostIds) return {};
    int last = first;
    if (after != end) {
      if (*after != '-') return {};
      const auto [after_last, error_last] = std::from_chars(after + 1, end, last);
      if (error_last != std::errc() || after_last != end || last >= kMostIds) return {};
    }
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

}  // namespace fathom::observe
