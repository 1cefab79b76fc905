#include "diagnose/input.h"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "diagnose/scrape.h"

namespace fathom::diagnose {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

class FileStream : public ByteStream {
 public:
  FileStream(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;
  ~FileStream() override {
    if (fd_ != STDIN_FILENO) close(fd_);
  }

  Result<size_t> Read(std::span<char> into) override {
    for (;;) {
      const ssize_t got = read(fd_, into.data(), into.size());
      if (got >= 0) {
        raw_bytes_ += static_cast<uint64_t>(got);
        return static_cast<size_t>(got);
      }
      if (errno != EINTR) {
        return Err(Code::kDataLoss, "{}: reading failed at byte {}: {}", name_, raw_bytes_,
                   std::strerror(errno));
      }
    }
  }
  uint64_t raw_bytes() const override { return raw_bytes_; }

 private:
  int fd_;
  std::string name_;
  uint64_t raw_bytes_ = 0;
};

class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::string bytes) : bytes_(std::move(bytes)) {}

  Result<size_t> Read(std::span<char> into) override {
    const size_t size = std::min(into.size(), bytes_.size() - position_);
    std::memcpy(into.data(), bytes_.data() + position_, size);
    position_ += size;
    return size;
  }
  uint64_t raw_bytes() const override { return position_; }

 private:
  std::string bytes_;
  size_t position_ = 0;
};

// RFC 1952, any number of members. Bytes behind the last member that start no other are ignored,
// as gzip does.
class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<ByteStream> raw)
      : raw_(std::move(raw)), state_(std::make_unique<inflate_state>()), chunk_(kChunkBytes) {
    StartMember();
  }

  Result<size_t> Read(std::span<char> into) override {
    state_->next_out = reinterpret_cast<uint8_t*>(into.data());
    state_->avail_out = static_cast<uint32_t>(std::min<size_t>(into.size(), UINT32_MAX));
    const uint32_t room = state_->avail_out;
    while (!done_ && state_->avail_out == room) {
      if (state_->avail_in == 0 && !ended_) {
        FATHOM_ASSIGN_OR_RETURN(const size_t got, raw_->Read(chunk_));
        ended_ = got == 0;
        state_->next_in = reinterpret_cast<uint8_t*>(chunk_.data());
        state_->avail_in = static_cast<uint32_t>(got);
      }
      if (between_members_) {
        if (state_->avail_in == 0 || state_->next_in[0] != 0x1f) {
          done_ = true;
          break;
        }
        between_members_ = false;
      }
      const uint32_t had_in = state_->avail_in;
      if (isal_inflate(state_.get()) < ISAL_DECOMP_OK) {
        done_ = true;
        damaged_ = true;
      } else if (state_->block_state == ISAL_BLOCK_FINISH) {
        StartMember();
      } else if (ended_ && had_in == 0 && state_->avail_out == room) {
        done_ = true;  // no input left and nothing held back: cut short
        damaged_ = true;
      }
    }
    return room - state_->avail_out;
  }
  uint64_t raw_bytes() const override { return raw_->raw_bytes(); }
  bool damaged() const override { return damaged_; }

 private:
  // Resets the decoder, keeping the input and output positions.
  void StartMember() {
    uint8_t* const next_in = state_->next_in;
    const uint32_t avail_in = state_->avail_in;
    uint8_t* const next_out = state_->next_out;
    const uint32_t avail_out = state_->avail_out;
    isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
    state_->next_in = next_in;
    state_->avail_in = avail_in;
    state_->next_out = next_out;
    state_->avail_out = avail_out;
    between_members_ = true;
  }

  std::unique_ptr<ByteStream> raw_;
  std::unique_ptr<inflate_state> state_;
  std::vector<char> chunk_;
  bool between_members_ = true;
  bool ended_ = false;  // raw_ has no more
  bool done_ = false;
  bool damaged_ = false;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<ByteStream> raw)
      : raw_(std::move(raw)), context_(ZSTD_createDCtx()), chunk_(kChunkBytes) {
    FATHOM_CHECK(context_ != nullptr);
    // 128 MiB: what `zstd --long` needs by default; a frame that asks for more is refused.
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, 27);
  }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;
  ~ZstdStream() override { ZSTD_freeDCtx(context_); }

  Result<size_t> Read(std::span<char> into) override {
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    while (!done_ && out.pos == 0) {
      if (in_.pos == in_.size && !output_pending_) {
        FATHOM_ASSIGN_OR_RETURN(const size_t got, raw_->Read(chunk_));
        if (got == 0) {
          done_ = true;
          damaged_ = mid_frame_;
          break;
        }
        in_ = {chunk_.data(), got, 0};
      }
      const size_t result = ZSTD_decompressStream(context_, &out, &in_);
      if (ZSTD_isError(result)) {
        done_ = true;
        damaged_ = true;
        break;
      }
      mid_frame_ = result != 0;
      output_pending_ = out.pos == out.size && mid_frame_;
    }
    return out.pos;
  }
  uint64_t raw_bytes() const override { return raw_->raw_bytes(); }
  bool damaged() const override { return damaged_; }

 private:
  std::unique_ptr<ByteStream> raw_;
  ZSTD_DCtx* context_;
  std::vector<char> chunk_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool mid_frame_ = false;
  bool output_pending_ = false;  // the decoder may hold bytes that did not fit
  bool done_ = false;
  bool damaged_ = false;
};

// Hands out bytes that were read for sniffing, then the rest of the stream.
class PrefixedStream : public ByteStream {
 public:
  PrefixedStream(std::string prefix, std::unique_ptr<ByteStream> rest)
      : prefix_(std::move(prefix)), rest_(std::move(rest)) {}

  Result<size_t> Read(std::span<char> into) override {
    if (position_ == prefix_.size()) return rest_->Read(into);
    const size_t size = std::min(into.size(), prefix_.size() - position_);
    std::memcpy(into.data(), prefix_.data() + position_, size);
    position_ += size;
    return size;
  }
  uint64_t raw_bytes() const override { return rest_->raw_bytes(); }

 private:
  std::string prefix_;
  size_t position_ = 0;
  std::unique_ptr<ByteStream> rest_;
};

// Reads until `size` bytes or the end.
Result<std::string> ReadUpTo(ByteStream& stream, size_t size) {
  constexpr size_t kStep = 16 << 10;
  std::string bytes;
  for (;;) {
    const size_t filled = bytes.size();
    if (filled == size) return bytes;
    bytes.resize(std::min(size, filled + std::max(kStep, filled)));
    FATHOM_ASSIGN_OR_RETURN(const size_t got, stream.Read(std::span(bytes).subspan(filled)));
    bytes.resize(filled + got);
    if (got == 0) return bytes;
  }
}

}  // namespace

Result<Input> Input::Start(std::string name, std::unique_ptr<ByteStream> stream) {
  Input input;
  input.name_ = std::move(name);
  FATHOM_ASSIGN_OR_RETURN(std::string head, ReadUpTo(*stream, 4));
  char magic[4] = {};
  head.copy(magic, sizeof(magic));
  const bool gzip = std::memcmp(magic, "\x1f\x8b", 2) == 0;
  const bool zstd = std::memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0;
  stream = std::make_unique<PrefixedStream>(std::move(head), std::move(stream));
  if (gzip) stream = std::make_unique<GzipStream>(std::move(stream));
  if (zstd) stream = std::make_unique<ZstdStream>(std::move(stream));
  input.compressed_ = gzip || zstd;
  input.stream_ = std::move(stream);
  FATHOM_ASSIGN_OR_RETURN(input.prefix_, ReadUpTo(*input.stream_, kPrefixBytes));
  return input;
}

Result<Input> Input::Open(const std::string& path) {
  if (path.starts_with("http://") || path.starts_with("https://")) {
    FATHOM_ASSIGN_OR_RETURN(const Url url, ParseUrl(path));
    FATHOM_ASSIGN_OR_RETURN(std::string page, Scrape(url));
    return FromMemory(path, std::move(page));
  }
  if (path == "-") return Start(path, std::make_unique<FileStream>(STDIN_FILENO, "stdin"));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Err(errno == ENOENT ? Code::kNotFound : Code::kInvalidArgument, "{}: cannot open: {}",
               path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
    close(fd);
    return Err(Code::kInvalidArgument, "{}: expected a file, found a directory", path);
  }
  FATHOM_ASSIGN_OR_RETURN(Input input, Start(path, std::make_unique<FileStream>(fd, path)));
  if (S_ISREG(info.st_mode)) {
    input.raw_size_ = static_cast<uint64_t>(info.st_size);
    if (!input.compressed_) input.plain_path_ = path;
  }
  return input;
}

Result<Input> Input::FromMemory(std::string name, std::string bytes) {
  const size_t size = bytes.size();
  FATHOM_ASSIGN_OR_RETURN(Input input,
                          Start(std::move(name), std::make_unique<MemoryStream>(std::move(bytes))));
  input.raw_size_ = size;
  return input;
}

Result<size_t> Input::Read(std::span<char> into) {
  size_t size = 0;
  if (prefix_read_ < prefix_.size()) {
    size = std::min(into.size(), prefix_.size() - prefix_read_);
    std::memcpy(into.data(), prefix_.data() + prefix_read_, size);
    prefix_read_ += size;
  } else {
    FATHOM_ASSIGN_OR_RETURN(size, stream_->Read(into));
  }
  bytes_read_ += size;
  if (progress_ && raw_size_ > 0) {
    progress_(static_cast<double>(stream_->raw_bytes()) / static_cast<double>(raw_size_));
  }
  return size;
}

Result<std::string> Input::ReadAll(uint64_t limit) {
  std::string all;
  for (;;) {
    const size_t filled = all.size();
    if (filled > limit) {
      return Err(Code::kResourceExhausted,
                 "{}: expected at most {} bytes of a format that is read whole, found more", name_,
                 limit);
    }
    // One byte more than the input's size, so that its end is seen without growing.
    const bool sized = filled == 0 && size_hint() > 0;
    all.resize(sized ? std::min(size_hint(), limit) + 1
                     : filled + std::max(kChunkBytes, filled / 2));
    FATHOM_ASSIGN_OR_RETURN(const size_t got, Read(std::span(all).subspan(filled)));
    all.resize(filled + got);
    if (got == 0) return all;
  }
}

Result<std::vector<std::string>> ExpandPaths(std::span<const std::string> paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path == "-" || !fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    fs::recursive_directory_iterator walk(path, fs::directory_options::skip_permission_denied,
                                          error);
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      const bool hidden = walk->path().filename().native().starts_with('.');
      std::error_code ignored;
      if (hidden && walk->is_directory(ignored)) walk.disable_recursion_pending();
      if (!hidden && walk->is_regular_file(ignored)) files.push_back(walk->path().string());
    }
    if (error) return Err(Code::kInvalidArgument, "{}: cannot list: {}", path, error.message());
    if (files.size() == before) {
      return Err(Code::kNotFound, "{}: expected a directory with artifacts, found no file", path);
    }
    std::sort(files.begin() + static_cast<ptrdiff_t>(before), files.end());
  }
  return files;
}

Window::Window(Input& input, size_t capacity)
    : input_(&input),
      // One byte more than the input, so that its end is seen without growing.
      capacity_(input.size_hint() == 0 ? capacity
                                       : std::min<size_t>(capacity, input.size_hint() + 1)) {
  buffer_ = std::make_unique_for_overwrite<char[]>(capacity_ + kPadding);
  std::memset(buffer_.get(), 0, kPadding);
}

void Window::Consume(size_t bytes) {
  FATHOM_DCHECK(bytes <= size());
  begin_ += bytes;
  offset_ += bytes;
}

Result<bool> Window::More() {
  const size_t unread = size();
  if (unread == capacity_ || (unread * 2 > capacity_ && capacity_ >= kDefaultCapacity)) {
    auto grown = std::make_unique_for_overwrite<char[]>(capacity_ * 2 + kPadding);
    std::memcpy(grown.get(), begin(), unread);
    buffer_ = std::move(grown);
    capacity_ *= 2;
  } else {
    std::memmove(buffer_.get(), begin(), unread);
  }
  begin_ = 0;
  end_ = unread;
  FATHOM_ASSIGN_OR_RETURN(const size_t got, input_->Read({buffer_.get() + end_, capacity_ - end_}));
  end_ += got;
  std::memset(buffer_.get() + end_, 0, kPadding);
  return got > 0;
}

Result<bool> LineReader::Next(std::string_view* line) {
  window_.Consume(pending_);
  pending_ = 0;
  size_t searched = 0;
  for (;;) {
    const std::string_view text = window_.text();
    const size_t newline = text.find('\n', searched);
    if (newline == std::string_view::npos && text.size() < kMaxLine) {
      searched = text.size();
      FATHOM_ASSIGN_OR_RETURN(const bool more, window_.More());
      if (more) continue;
      if (window_.size() == 0) return false;
    }
    const std::string_view all = window_.text();
    const size_t length = std::min(newline, all.size());
    const bool cut = newline == std::string_view::npos && length >= kMaxLine;
    pending_ = newline == std::string_view::npos ? length : newline + 1;
    if (skip_rest_) {
      window_.Consume(pending_);
      pending_ = 0;
      searched = 0;
      skip_rest_ = cut;
      continue;
    }
    skip_rest_ = cut;
    offset_ = window_.offset();
    ++line_number_;
    *line = all.substr(0, std::min(length, kMaxLine));
    if (!cut && line->ends_with('\r')) line->remove_suffix(1);
    return true;
  }
}

}  // namespace fathom::diagnose
