#include "base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

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
  // A device or a pipe is written to, not replaced; behind a link the file it names is.
  struct stat found;
  const bool exists = stat(path.c_str(), &found) == 0;
  const bool replace = !exists || S_ISREG(found.st_mode);
  std::string target = path;
  if (exists && replace) {
    std::error_code error;
    if (const auto real = std::filesystem::canonical(path, error); !error) target = real.string();
  }
  const std::string written = replace ? fmt::format("{}.{}.tmp", target, getpid()) : path;
  const int flags = replace ? O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC : O_WRONLY | O_CLOEXEC;
  const int fd = open(written.c_str(), flags, 0666);
  if (fd < 0) {
    return Err(Code::kInvalidArgument, "{}: cannot {}: {}", path, replace ? "create" : "write",
               std::strerror(errno));
  }
  Status status = produce([&](std::string_view piece) { return WriteAll(fd, path, piece); });
  if (close(fd) != 0 && status) {
    status = Err(Code::kResourceExhausted, "{}: cannot write: {}", path, std::strerror(errno));
  }
  if (!replace) return status;
  if (status && std::rename(written.c_str(), target.c_str()) != 0) {
    status = Err(Code::kInvalidArgument, "{}: cannot replace: {}", path, std::strerror(errno));
  }
  if (!status) unlink(written.c_str());
  return status;
}

}  // namespace fathom
