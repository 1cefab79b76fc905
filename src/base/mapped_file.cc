#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace fathom {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Err(errno == ENOENT ? Code::kNotFound : Code::kInvalidArgument, "{}: cannot open: {}",
               path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Err(Code::kInvalidArgument, "{}: expected a regular file", path);
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return Err(Code::kResourceExhausted, "{}: cannot map {} bytes: {}", path, info.st_size,
                 std::strerror(error));
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Drop(size_t offset, size_t size) const {
  if (data_ == nullptr || offset >= size_) return;
  // Only whole pages inside the range: a neighbour's bytes stay.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = std::min(offset + size, size_) / page * page;
  if (first < last) {
    madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
  }
}

}  // namespace fathom
