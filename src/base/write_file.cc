#include "base/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace fathom {
namespace {

Status WriteAll(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Err(errno == ENOSPC ? Code::kResourceExhausted : Code::kInvalidArgument,
                 "{}: cannot write: {}", path, std::strerror(errno));
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Status WriteFile(const std::string& path, std::string_view text) {
  return WriteFileInPieces(path, [&](const WritePiece& write) { return write(text); });
}

Status WriteFileInPieces(const std::string& path,
                         const std::function<Status(const WritePiece& write)>& produce) {
  if (path == "-") {
    std::fflush(stdout);
    return produce(
        [](std::string_view piece) { return WriteAll(STDOUT_FILENO, "standard output", piece); });
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    return Err(Code::kInvalidArgument, "{}: cannot create: {}", path, std::strerror(errno));
  }
  Status status = produce([&](std::string_view piece) { return WriteAll(fd, path, piece); });
  if (close(fd) != 0 && status) {
    status = Err(Code::kResourceExhausted, "{}: cannot write: {}", path, std::strerror(errno));
  }
  if (status && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = Err(Code::kInvalidArgument, "{}: cannot replace: {}", path, std::strerror(errno));
  }
  if (!status) unlink(temporary.c_str());
  return status;
}

}  // namespace fathom
